"""A training run of an hour in which something fails every few seconds, and which still reaches its target."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.chaos.fault_report import FaultReport
from tests.chaos.soak_run import SoakRun
from tests.support.launched import ROOT, tidemill
from tidemill.config.load import read_document

LONGEST_PAUSE_S = 20.0
"""Between a recovery and the next fault."""
_TEST_EPISODES = 100
_EVALUATION_S = 1800.0


def quickstart() -> dict[str, Any]:
    """Return the settings of the quickstart at a pace at which it has not learned all before most faults."""
    settings = read_document(ROOT / "configs" / "quickstart.yaml")
    del settings["run"]["max_wall_s"]
    settings["env"]["num_envs"] = 16
    settings["table"]["max_items"] = 60_000
    settings["actor"] = {"max_env_steps_per_s": 80.0}
    settings["learner"] = {"checkpoint_every_s": 10.0, "publish_every": 20}
    settings["evaluator"] = {"min_interval_s": 20.0, "start_env_steps": 2_000, "video": False}
    return settings


def soak(folder: Path, minutes: float, seed: int, settings: Mapping[str, Any], longest_pause_s: float) -> FaultReport:
    """Train for so many minutes of faults of every kind, in random order; say whether the run reached its target.

    After each fault decisions are stored, updates taken and versions published. Counts never fall, the table's
    streams have no gap and no item twice, and all ends as it should. What goes wrong ends the series, but its row is
    written: `missed` counts it, and a target that the run's best version does not reach over fresh episodes.

    Args:
        folder: Of the run.
        minutes: Duration of the faults.
        seed: Of their order and moments.
        settings: Of the run; `run.target_return` is its target, at which it does not end.
        longest_pause_s: Between a recovery and the next fault, in seconds.
    """
    report = FaultReport(f"soak: {minutes:g} minutes of faults of all kinds")
    target: float = settings["run"]["target_return"]
    try:
        with ExitStack() as stack:
            run = SoakRun(folder, stack, settings, report)
            run.suffer(minutes, random.Random(seed), longest_pause_s)
            run.compare()
        answer = tidemill("evaluate", str(run.folder), "--episodes", str(_TEST_EPISODES), bound_s=_EVALUATION_S)
        found = re.search(r"mean\s+(-?[\d.]+)", answer)
        assert found, answer
        report.figures |= {"score": float(found[1]), "target": target}
        report.missed += float(found[1]) < target
    except AssertionError as error:
        report.missed += 1
        sys.stderr.write(f"{error}\n")
        report.figures["ended_by"] = str(error).partition("\n")[0]
    return report
