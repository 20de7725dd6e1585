"""Pretended GPUs compute what the CPU does, and a run's real processes train on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_rehearsal_processes import with_source
from benchmarks.pretended_gpus import build, environment
from tests.support.batches import DISTINCT_CASES
from tests.support.compiler import require_compiler
from tests.support.launched import ROOT
from tests.support.waiting import crowd

pytestmark = [pytest.mark.process, pytest.mark.timeout(3000)]

_BOUND_S = 300.0 * crowd()
_TOLERANCE = 2e-6
_DRAW = ("dqn_rainbow", "dqn_btr", "dqn_colours", "sac", "td3")
"""What the names of the cases begin with whose updates draw on the GPU: other numbers than on the CPU."""
_SMALL = (
    *("--config", "configs/cartpole_dqn.yaml", "--run.target-return", "null", "--agent.hidden-sizes", "16"),
    *("--agent.batch-size", "16", "--table.min-size", "100", "--evaluator.episodes", "1", "--evaluator.num-envs", "1"),
    *("--evaluator.confirm-episodes", "1", "--evaluator.min-interval-s", "30", "--learner.publish-every", "5"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library; the tests need a C++ compiler."""
    require_compiler()
    return build(tmp_path_factory.mktemp("pretended"))


def test_updates_end_where_those_of_the_cpu_end(built: Path) -> None:
    """Every agent; recorded ones end where eager ones do, those that draw on the GPU as well."""
    command = [sys.executable, "-m", "tests.process.pretended_gpu_updates", *DISTINCT_CASES]
    variables = environment(built, 2)
    variables["PYTHONPATH"] += os.pathsep + str(ROOT / "examples")
    said = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=_BOUND_S, check=False
    )
    assert said.returncode == 0, said.stderr
    found = dict(json.loads(line) for line in said.stdout.splitlines())
    assert set(found) == set(DISTINCT_CASES)
    drawn = {name for name in DISTINCT_CASES if name.startswith(_DRAW) and not name.startswith("sac_discrete")}
    apart = {name: each["eager"] for name, each in found.items() if name not in drawn and each["eager"] > _TOLERANCE}
    assert apart == {}
    assert {name: each for name, each in found.items() if each.get("recorded", 0) > _TOLERANCE} == {}
    assert len([name for name, each in found.items() if "recorded" in each]) > 20


_TRIAL = """
import sys, warnings

warnings.simplefilter("ignore")
import torch
from tests.support.batches import CASES, sampled_batch
from dataclasses import replace
from tidemill.process import leave
from tidemill.rl.agents import capture_trial
from tidemill.rl.agents.build import build_agent

capture_trial._TIMEOUT_S = 600.0  # not what is tested
config, env_spec = CASES["dqn"]
if len(sys.argv) > 1:
    config = replace(config, network=sys.argv[1], network_settings={})
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
chosen = capture_trial.with_chosen_compile(config, env_spec, device, 6)
agent = build_agent(chosen, env_spec, str(device), 1)
batch = sampled_batch(agent, chosen, env_spec, 6, torch.Generator().manual_seed(0))
for _ in range(5):
    agent.update({name: tensor.to(device) for name, tensor in batch.items()}, torch.ones(6).to(device))
print(chosen.compile)
leave(0)  # torch's threads for GPUs may abort the interpreter's teardown
"""
_READS = """
from torch import nn


class Reads(nn.Module):
    def __init__(self, env_spec, rng):
        super().__init__()
        self.layer, self.outputs = nn.Linear(3, 8), 8

    def forward(self, observation):
        features = self.layer(observation)
        return features * (2.0 if features.sum().item() > 0 else 1.0)
"""


@pytest.mark.parametrize(
    "network, gpus, expected", [("", 1, "cuda-graphs"), ("reads:Reads", 1, "none"), ("", 0, "none")]
)
def test_updates_are_recorded_by_default_where_they_can_be(
    network: str, gpus: int, expected: str, built: Path, tmp_path: Path
) -> None:
    """A network that reads a number back fails in the child that tries, and the agent makes its updates without.

    No program is on the path, as no compiler is in an image.
    """
    (tmp_path / "reads.py").write_text(_READS)
    variables = environment(built, gpus)
    variables["PYTHONPATH"] += os.pathsep + os.pathsep.join([str(ROOT), str(ROOT / "examples"), str(tmp_path)])
    variables |= {"PATH": str(tmp_path), "CC": "", "CXX": ""}
    command = [sys.executable, "-c", _TRIAL, *([network] if network else [])]
    said = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=_BOUND_S, check=False
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == expected
    told = "cannot record updates as CUDA graphs" in said.stdout + said.stderr
    assert told == bool(network)


_COPIES = """
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

warnings.simplefilter("ignore")
import numpy as np
import torch
from tests.support.batches import CASES
from tidemill.process import leave
from tidemill.rl.agents.build import build_agent
from tidemill.services.learner.publishing import HostCopies

config, env_spec = CASES["dqn_rainbow"]
state = build_agent(config, env_spec, "cuda:1", 1).policy_state()
state |= {"count": torch.tensor(3).to("cuda:1"), "turned": torch.arange(6.0).to("cuda:1").view(2, 3).T}
state |= {"on the host": torch.tensor([1.5])}
expected = {name: tensor.cpu().numpy().copy() for name, tensor in state.items()}
copies, copied = HostCopies(), torch.Tensor.copy_
to_host = []


def counted(target, source, **settings):
    if source.is_cuda and not target.is_cuda:
        to_host.append((source.dtype, settings["non_blocking"], torch.cuda.current_stream().stream_id))
    return copied(target, source, **settings)


def publish(finish):
    with mock.patch.object(torch.Tensor, "copy_", counted), mock.patch.object(torch.Tensor, "cpu", None):
        arrays = finish()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], strict=True)
    assert list(arrays) == list(state)
    assert torch.cuda.current_device() == 1, "the thread opened another GPU"


torch.cuda.set_device(1)
with ThreadPoolExecutor(1) as publisher:
    for _ in range(2):
        publisher.submit(publish, copies.begin(state)).result(600)
streams = {stream for _, _, stream in to_host}
assert torch.cuda.current_stream().stream_id not in streams, "by the training stream"
print(len(to_host), len(streams), {is_ahead for _, is_ahead, _ in to_host})
leave(0)  # torch's threads for GPUs may abort the interpreter's teardown
"""


def _run(built: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on two pretended GPUs, with the examples' modules."""
    variables = environment(built, 2)
    variables["PYTHONPATH"] += os.pathsep + str(ROOT / "examples")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=_BOUND_S,
        check=False,
    )


def test_parameters_leave_a_gpu_in_one_copy_for_each_dtype(built: Path) -> None:
    """Copies use a separate stream, without waiting for each; they equal what the agent has, strides included."""
    said = _run(built, "-c", _COPIES)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == "4 1 {True}"


def test_policies_act_on_a_gpu(built: Path) -> None:
    """Those of every algorithm and of the documentation, by the tests that need one."""
    files = [f"tests/unit/rl/test_{name}.py" for name in ("agents", "documented_example")]
    options = ("-q", "-m", "requires_cuda", "-W", "ignore", "-p", "no:cacheprovider")  # torch is a CPU's, and warns
    said = _run(built, "-m", "pytest", *options, *files)
    assert said.returncode == 0, said.stdout
    assert f"{len(DISTINCT_CASES) + 1} passed" in said.stdout


_ALONE = """
import warnings
from unittest import mock

warnings.simplefilter("ignore")
import torch
from benchmarks import learner
from benchmarks.learner_cases import CASES
from tidemill.process import leave
from tidemill.rl.agents import capture_trial

capture_trial._TIMEOUT_S = 600.0  # not what is tested
updates, built = [], learner.build_agent


def counted(config, *words, **settings):
    agent = built(config, *words, **settings)
    update = agent.update
    agent.update = lambda batch, weight: updates.append("update") or update(batch, weight)
    print(config.compile)
    return agent


with (
    mock.patch.object(learner, "build_agent", counted),
    mock.patch.object(torch.cuda, "synchronize", lambda: updates.append("wait")),
):
    learner._update_alone(CASES["sac_256_256_256"].config(), 0.1)
print(updates.index("wait"), updates.count("wait"), updates[-1], torch.backends.cudnn.benchmark)
leave(0)  # torch's threads for GPUs may abort the interpreter's teardown
"""


def test_updates_from_memory_are_those_of_a_learner(built: Path) -> None:
    """The benchmark's are recorded before its clock starts, and finished when it starts and ends."""
    said = subprocess.run(
        [sys.executable, "-c", _ALONE],
        cwd=ROOT,
        env=environment(built, 1),
        capture_output=True,
        text=True,
        timeout=_BOUND_S,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-2:] == ["cuda-graphs", "8 2 wait True"]


def test_run_on_four_gpus_survives_a_rank_and_goes_on_with_two_and_with_none(built: Path, tmp_path: Path) -> None:
    """Real processes: mirrors and inference on each GPU, updates as CUDA graphs, gradients exchanged.

    Half of each batch of 16 comes from a second table, `learner.sources`, on every rank.
    """
    found = with_source(built, tmp_path, _SMALL, 20)
    assert found["mirrors on"] == [f"cuda:{index}" for index in range(4)]
    steps = [found[part] for part in ("4 GPUs", "after a rank was killed", "resumed on 2 GPUs", "resumed on no GPU")]
    assert steps == sorted(set(steps))
    assert found["drawn from the source"] >= 8 * steps[-1]
