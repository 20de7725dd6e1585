"""GPUs rehearsed on a machine without one: what would break there, or be slower than it was, fails here."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import DISTINCT_CASES
from tests.support.compiler import require_compiler

ROOT = Path(__file__).parents[2]
BUDGET = ROOT / "benchmarks" / "results" / "gpu_rehearsal.json"
PARTS = ("starts", "copies", "resumes", "regressions", "budget", "updates")
_CASE_S = 240.0

pytestmark = pytest.mark.timeout(1200)
"""The first test waits for all parts, which take a few minutes of a core that others use as well."""

Seen = dict[str, dict[str, Any]]
"""By part and case."""


@pytest.fixture(scope="module")
def seen() -> Seen:
    """What a process that rehearses says of each part's cases, all within a minute or two of a core."""
    require_compiler()
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.process.gpu_rehearsal", *PARTS]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            while select.select([process.stdout], [], [], _CASE_S)[0] and (line := process.stdout.readline()):
                part, case, said = json.loads(line)
                found[part][case] = said
        finally:
            process.kill()
    assert not [cases["raised"] for cases in found.values() if "raised" in cases]
    assert sorted(found) == sorted(PARTS)
    return dict(found)


def test_updates_do_nothing_that_a_gpu_would_mind(seen: Seen) -> None:
    """Eager and as CUDA graphs: nothing is on the wrong device or waited for, and a graph keeps no number of the host.

    `target_kl` alone has PPO ask how far the policy has moved.
    """
    said = {name: case["said"] for name, case in seen["updates"].items() if case["said"]}
    allowed = said.pop("ppo_continuous, eager")
    assert said == {}
    assert ["_local_scalar_dense" in line for line in allowed] == [True]
    assert {name.partition(",")[0] for name in seen["updates"]} == set(DISTINCT_CASES)


def test_networks_that_deterministic_runs_refuse_on_a_gpu_are_those_of_the_guide(seen: Seen) -> None:
    """Torch has no deterministic kernel for the gradient of a max pool, which of Tidemill's networks `impala` has."""
    found = {name.partition(",")[0]: case["undetermined"] for name, case in seen["updates"].items()}
    refused = {name: operations for name, operations in found.items() if operations}
    assert refused.keys() == {
        name for name, (config, _) in DISTINCT_CASES.items() if getattr(config, "network", "") == "impala"
    }
    assert set().union(*refused.values()) == {"max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward"}
    guide = " ".join((ROOT / "docs" / "lock-step.md").read_text(encoding="utf-8").split())
    assert "the network `impala`, whose max pools have no deterministic gradient on a GPU" in guide


def test_recorded_update_is_launched_as_a_whole(seen: Seen) -> None:
    """Whatever the algorithm, once its kinds are recorded there are but copies of the batch and of what is reported."""
    found = {name: case["launches"][-1] for name, case in seen["updates"].items() if name.endswith("graphs")}
    assert len(found) > 20
    assert {name: launches for name, launches in found.items() if launches > 20} == {}


def test_update_launches_no_more_than_it_did(seen: Seen) -> None:
    """`python -m benchmarks.gpu_rehearsal` writes the budget again where an update was made to launch fewer."""
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))["launches"]
    found = seen["budget"]
    assert found.keys() == budget.keys()
    more = {
        (name, way): f"{launches} launches, {budget[name][way]} before"
        for name, ways in found.items()
        for way, launches in ways.items()
        if launches > budget[name][way]
    }
    assert more == {}
    far_fewer = {
        (name, way) for name in found for way, launches in found[name].items() if launches < budget[name][way] * 0.8
    }
    assert far_fewer == set(), "the budget is no bound any more: python -m benchmarks.gpu_rehearsal"


def test_learners_and_inference_take_the_gpu_that_is_theirs(seen: Seen) -> None:
    """One learner the first, each of several its own, and none opens another; all of them cannot share one."""
    for name, found in seen["starts"].items():
        who, _, wanted = name.partition(", ")
        own = int(who.split()[1]) if who.startswith("learner") and "of 1 " not in who else 0
        if wanted == "cpu":
            assert found == "cpu"
        elif who.startswith("learner") and "of 8" in who and ":" in wanted:
            assert found == "ConfigError"
        else:
            device = wanted if ":" in wanted else f"cuda:{own}"
            assert found in (device, f"{device}, opened [{device[-1]}]"), name


def test_threads_of_a_rank_open_its_own_gpu_alone(seen: Seen) -> None:
    """Those that decode batches and that receive the mirror's rows; none of their copies has the host wait."""
    for index in (0, 3):
        opened = {"receive": [index], "decode": [index]}
        assert seen["copies"][f"rank of cuda:{index}"] == {"opened": opened, "said": []}


def test_run_goes_on_on_another_kind_of_device(seen: Seen) -> None:
    """Every algorithm's state loads on a CPU or any GPU, wherever it was taken."""
    assert seen["resumes"] == {"all": ""}


def test_faults_that_are_put_in_are_noticed(seen: Seen) -> None:
    """Each of nine that tests on a CPU do not see, in DQN or SAC."""
    assert len(seen["regressions"]) == 9
    assert [fault for fault, said in seen["regressions"].items() if not said] == []
