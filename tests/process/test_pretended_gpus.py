"""Pretended GPUs compute what the CPU does, and a run's real processes train on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_rehearsal_processes import several
from benchmarks.pretended_gpus import build, environment
from tests.support.batches import CASES
from tests.support.launched import ROOT
from tidemill.rehearsal.library import compiler

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

_BOUND_S = 300.0
_TOLERANCE = 2e-6
_DRAW = ("dqn_rainbow", "dqn_btr", "dqn_colours", "sac", "td3")
"""What the names of the cases begin with whose updates draw on the GPU: other numbers than on the CPU."""
_SMALL = (
    *("--config", "configs/cartpole_dqn.yaml", "--run.target-return", "null", "--agent.hidden-sizes", "16"),
    *("--agent.batch-size", "16", "--table.min-size", "100", "--evaluator.episodes", "1", "--evaluator.num-envs", "1"),
    *("--evaluator.confirm-episodes", "1"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library; without a C++ compiler the tests are skipped, unless TIDEMILL_REQUIRE_REHEARSAL is set."""
    if compiler() is None:
        if os.environ.get("TIDEMILL_REQUIRE_REHEARSAL"):
            pytest.fail("there is no C++ compiler")
        pytest.skip("there is no C++ compiler")
    return build(tmp_path_factory.mktemp("pretended"))


def test_updates_end_where_those_of_the_cpu_end(built: Path) -> None:
    """Every agent; recorded ones end where eager ones do, those that draw on the GPU as well."""
    command = [sys.executable, "-m", "tests.process.pretended_gpu_updates", *CASES]
    variables = environment(built, 2)
    variables["PYTHONPATH"] += os.pathsep + str(ROOT / "examples")
    said = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=_BOUND_S, check=False
    )
    assert said.returncode == 0, said.stderr
    found = dict(json.loads(line) for line in said.stdout.splitlines())
    assert set(found) == set(CASES)
    drawn = {name for name in CASES if name.startswith(_DRAW) and not name.startswith("sac_discrete")}
    apart = {name: each["eager"] for name, each in found.items() if name not in drawn and each["eager"] > _TOLERANCE}
    assert apart == {}
    assert {name: each for name, each in found.items() if each.get("recorded", 0) > _TOLERANCE} == {}
    assert len([name for name, each in found.items() if "recorded" in each]) > 20


def test_run_on_four_gpus_survives_a_rank_and_goes_on_with_two_and_with_none(built: Path, tmp_path: Path) -> None:
    """Real processes: mirrors and inference on each GPU, updates as CUDA graphs, gradients exchanged."""
    found = several(built, tmp_path, _SMALL, 60)
    assert found["mirrors on"] == [f"cuda:{index}" for index in range(4)]
    steps = [found[part] for part in ("4 GPUs", "after a rank was killed", "resumed on 2 GPUs", "resumed on no GPU")]
    assert steps == sorted(set(steps))
