"""A policy as ONNX: what it holds is what the policy does in evaluation, and a reason where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tidemill
from tests.support.batches import policy_input
from tests.support.extras import needs_extra, with_extras
from tidemill.bundle import onnx_report
from tidemill.bundle.onnx_file import _compared, write_onnx
from tidemill.bundle.onnx_report import OnnxReport, try_onnx
from tidemill.config.load import from_document
from tidemill.config.sections import RunConfig
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.services.tools.export import _describe_onnx
from tidemill.types import EnvSpec, ObservationPart

BOX = EnvSpec((3,), "float32", action_shape=(2,))
DISCRETE = EnvSpec((3,), "float32", num_actions=4)
MASKED = EnvSpec((3,), "float32", num_actions=4, masks_actions=True)
PARTS = EnvSpec((12,), "uint8", num_actions=4, observation_parts=(ObservationPart("speed", "float32", (3,)),))
CASES: list[tuple[EnvSpec, dict[str, Any]]] = [
    (DISCRETE, {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [8]}),
    (DISCRETE, {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [8], "distribution": "c51", "noisy": True}),
    (
        DISCRETE,
        {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [8], "distribution": "iqn", "atoms": 4, "loss": "mse"},
    ),
    (DISCRETE, {"algorithm": "sac_discrete"}),
    (BOX, {"algorithm": "sac", "hidden_sizes": [8], "actor_ema_decay": 0.9}),
    (BOX, {"algorithm": "sac", "hidden_sizes": [8], "crossq": True}),
    (BOX, {"algorithm": "td3"}),
    (BOX, {"algorithm": "sac", "hidden_sizes": [8], "normalize_observations": True, "normalize_rewards": True}),
    (DISCRETE, {"algorithm": "dqn", "hidden_sizes": [8], "normalize_observations": True, "normalize_rewards": True}),
    (BOX, {"algorithm": "ddpg"}),
    (BOX, {"algorithm": "d4pg"}),
    (BOX, {"algorithm": "ppo"}),
    (DISCRETE, {"algorithm": "impala"}),
    (DISCRETE, {"algorithm": "pqn"}),
]


def _policy(spec: EnvSpec, settings: dict[str, Any]) -> Any:  # noqa: ANN401 - any algorithm's
    return tidemill.build_policy(from_document(RunConfig, {"agent": settings}).agent, spec, seed=3)


@pytest.mark.parametrize("spec,settings", CASES, ids=[f"{case[1]['algorithm']}{len(case[1])}" for case in CASES])
def test_evaluation_network_acts_as_the_policy_in_evaluation(spec: EnvSpec, settings: dict[str, Any]) -> None:
    """Of every algorithm that has no recurrent state: the same actions, of the same dtype and shape."""
    policy = _policy(spec, settings)
    seen = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    expected = policy.act(policy_input(seen), evaluation=True).action
    with torch.inference_mode():
        found = policy.evaluation_network()(torch.from_numpy(seen)).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("spec, word", [(MASKED, "legal"), (PARTS, "parts")])
def test_environment_whose_policy_needs_more_than_one_input_gets_none(spec: EnvSpec, word: str, tmp_path: Path) -> None:
    """A file that ignored the mask would choose illegal actions."""
    policy = _policy(spec, {"algorithm": "dqn", "network": "mlp"})
    assert word in write_onnx(policy, spec, tmp_path / "policy.onnx").reason


def test_policy_that_remembers_or_hides_its_network_has_none(tmp_path: Path) -> None:
    """The report says which of the two."""
    discrete, continuous = EnvSpec((3,), "float32", num_actions=2), EnvSpec((3,), "float32", action_shape=(2,))
    cases: tuple[tuple[EnvSpec, dict[str, Any]], ...] = (
        (discrete, {"algorithm": "r2d2", "network": "mlp"}),
        (discrete, {"algorithm": "impala", "lstm_size": 8}),
        (continuous, {"algorithm": "sac", "lstm_size": 8}),
        (continuous, {"algorithm": "td3", "lstm_size": 8}),
    )
    for spec, settings in cases:
        recurrent = _policy(spec, settings)
        assert "recurrent" in write_onnx(recurrent, DISCRETE, tmp_path / "a.onnx").reason
    assert write_onnx(object(), DISCRETE, tmp_path / "a.onnx").reason == "object has no `evaluation_network`"
    assert not (tmp_path / "a.onnx").exists()


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started then."""
    monkeypatch.setattr(onnx_report, "_NEEDED", ("numpy", "no_such_package"))
    report = try_onnx(tmp_path, 1, tmp_path / "a.onnx")
    assert report == OnnxReport("no_such_package not installed: pip install 'tidemill[onnx]'")


def test_process_that_fails_gives_its_last_line_as_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export without ONNX is an export."""
    monkeypatch.setattr(onnx_report, "_NEEDED", ())
    assert "is neither a run nor a bundle" in try_onnx(tmp_path, 1, tmp_path / "a.onnx").reason


def test_card_describes_the_file_or_why_there_is_none() -> None:
    """Shapes, agreement, what the numbers of actions mean, and what a stack is."""
    none = _describe_onnx(OnnxReport("it is recurrent"), is_discrete=True, frame_stack=1)
    assert none == "There is no `policy.onnx`: it is recurrent."
    report = OnnxReport("", 64, 1.5e-7, "float32 [N, 3]", "float32 [N, 1]")
    said = _describe_onnx(report, is_discrete=False, frame_stack=1)
    assert "`observation` float32 [N, 3], as `make_env` gives it, to `action` float32 [N, 1]; actions lie in" in said
    assert said.endswith("On 64 random observations onnxruntime and torch differed by at most 1.5e-07.")
    discrete = _describe_onnx(report, is_discrete=True, frame_stack=1)
    assert "; actions count from 0, whatever the `start` of the environment's action space." in discrete
    assert "chose the actions that torch chose." in discrete
    joint = _describe_onnx(report, is_discrete=True, frame_stack=1, is_joint=True)
    assert "the number of a combination of choices (`env.joint_actions`), from which `numpy.unravel_index(" in joint
    stacked = _describe_onnx(OnnxReport("", 64, 0.0, "uint8 [N, 4, 84, 84]"), is_discrete=True, frame_stack=4)
    assert "`observation` uint8 [N, 4, 84, 84], a stack of what `make_env` gives, to" in stacked
    assert "Stack the last 4 observations, oldest first; at the start of an episode repeat the first one." in stacked


def test_file_that_answers_with_nan_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No comparison of NaN is true, so it would count as equal."""
    found = np.array([[0.5], [np.nan]], np.float32)
    session = SimpleNamespace(run=lambda *_: [found])
    runtime = SimpleNamespace(InferenceSession=lambda *_, **__: session)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    file = tmp_path / "policy.onnx"
    file.touch()
    report = _compared(file, np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32))
    assert "differ by nan" in report.reason
    assert not file.exists()


def test_network_that_does_not_do_what_the_policy_does_gets_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an algorithm of one's own, whose `evaluation_network` forgets a squash: `act` is what was measured."""
    network, file = torch.nn.Linear(3, 2).requires_grad_(False), tmp_path / "policy.onnx"
    session = SimpleNamespace(run=lambda _, fed: [network(torch.from_numpy(fed["observation"])).numpy()])
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=lambda *_, **__: session))
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: file.touch())

    def act(policy_input: PolicyInput, *, evaluation: bool, squash: Any = torch.tanh) -> PolicyOutput:  # noqa: ANN401
        assert evaluation
        return PolicyOutput(squash(network(torch.from_numpy(policy_input.observation))).numpy())

    own = SimpleNamespace(evaluation_network=lambda: network, act=act)
    assert "differ" in write_onnx(own, BOX, file).reason
    assert not file.exists()
    own.act = partial(act, squash=torch.clone)
    assert write_onnx(own, BOX, file) == OnnxReport("", 64, 0.0, "float32 [N, 3]", "float32 [N, 2]")


_WRITE = """
import dataclasses, json, pathlib, sys, tidemill
from tidemill.bundle.onnx_file import write_onnx
from tidemill.config.load import from_document
from tidemill.config.sections import RunConfig
from tidemill.types import EnvSpec, ObservationPart
for number, (settings, spec) in enumerate(json.loads(sys.argv[1])):
    shapes = EnvSpec(**{name: tuple(value) if isinstance(value, list) else value for name, value in spec.items()})
    policy = tidemill.build_policy(from_document(RunConfig, {"agent": settings}).agent, shapes, seed=3)
    file = pathlib.Path(sys.argv[2]) / f"{number}.onnx"
    print(json.dumps([dataclasses.asdict(write_onnx(policy, shapes, file)), file.exists()]), flush=True)
"""


@needs_extra()
def test_onnxruntime_acts_as_torch(tmp_path: Path) -> None:
    """A vector policy of floats and one of stacked images: written in one file, and compared on 64 observations."""
    images = {"observation_shape": [84, 84], "observation_dtype": "uint8", "num_actions": 4, "frame_stack": 4}
    vectors = {"observation_shape": [3], "observation_dtype": "float32", "action_shape": [2]}
    cases = [({"algorithm": "sac", "hidden_sizes": [8]}, vectors), ({"algorithm": "dqn", "network": "nature"}, images)]
    command = [sys.executable, "-c", _WRITE, json.dumps(cases), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=with_extras())
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[{")]
    assert [(report["reason"], exists) for report, exists in lines] == [("", True), ("", True)]
    assert lines[0][0]["difference"] < 1e-5
    assert (lines[1][0]["input"], lines[1][0]["output"]) == ("uint8 [N, 4, 84, 84]", "int64 [N]")
