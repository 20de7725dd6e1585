"""Environments of dm_env_rpc: a server of the package itself, in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.extras import EXTRAS, with_extras
from tests.support.launched import ROOT
from tests.support.naming import naming
from tests.support.security import become
from tidemill.envs import dm_env_messages as pb
from tidemill.envs.dm_env_rpc import DmEnvRpc, _action_space
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.make import make_env, spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, EnvFailed, FatalError, TidemillError
from tidemill.services.tools.certs import make
from tidemill.types import EnvSpec

_SERVER = ROOT / "tests" / "support" / "dm_env_rpc_server.py"


class _Server:
    """The server, its address and its end."""

    def __init__(self) -> None:
        """Start it."""
        command = [sys.executable, str(_SERVER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=with_extras()
        )
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{self._process.stdout.readline().strip()}"

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate(timeout=60)

    def settings(self, **kwargs: Any) -> EnvSettings:  # noqa: ANN401 - of the environment
        """Return the settings of its environment."""
        return EnvSettings("tidemill.envs.dm_env_rpc:DmEnvRpc", kwargs={"address": self.address, **kwargs})


@pytest.fixture(scope="module")
def server() -> Iterator[_Server]:
    """A server for the tests of this file."""
    if not (EXTRAS / "dm_env_rpc").exists():
        pytest.skip("needs make .venv-extras/.installed")
    with closing(_Server()) as started:
        yield started


def test_environment_of_a_server_is_played(server: _Server) -> None:
    """Episodes begin, bring rewards and terminate; the same seed and actions give the same ones."""
    settings = server.settings(observations=["board"], seed_setting="seed")
    assert spec_of(settings) == EnvSpec((6, 5), "float32", num_actions=3)
    with closing(make_env(settings, 2, training=True)) as env:
        boards = [env.reset(seed) for seed in (3, 3, 4)]
        assert (boards[0] == boards[1]).all()
        assert (boards[0][1] == boards[2][0]).all()
        observation, returns = env.reset(3), list[float]()
        for number in range(12):
            step = env.step(_towards_the_ball(observation))
            observation = step.observation
            returns += [summary.episode_return for summary in step.episodes]
            assert step.terminated.all() == (number in (4, 10))
        assert returns == [1.0] * 4


def _towards_the_ball(boards: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the moves that catch the ball: it is in an upper row, and the catcher in the last."""
    ball = boards[:, :-1].sum(1).argmax(1)
    moves: NDArray[np.int64] = np.sign(ball - boards[:, -1].argmax(1)) + 1
    return moves


def test_all_numbers_are_seen_unless_observations_are_named(server: _Server) -> None:
    """Texts are left out, and so is the reward."""
    assert [part.name for part in spec_of(server.settings()).observation_parts] == ["board", "place"]


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"observations": ["bord"]}, "env.kwargs.observations 'bord' 'board'"),
        ({"observations": ["label"]}, "env.kwargs.observations 'label' numbers"),
        ({"action": "jump"}, "env.kwargs.action 'jump' 'move'"),
        ({"reward": "score"}, "env.kwargs.reward 'score' 'reward'"),
    ],
)
def test_what_the_server_lacks_is_named(server: _Server, kwargs: dict[str, Any], message: str) -> None:
    """With what it offers."""
    with pytest.raises(ConfigError, match=naming(message)):
        make_env(server.settings(**kwargs), 1, training=True)


def test_refusal_of_the_server_is_told(server: _Server) -> None:
    """In its words."""
    with pytest.raises(FatalError, match=naming("create_world 'bad'")):
        make_env(server.settings(create_settings={"bad": 1}), 1, training=True)


def test_server_that_dies_is_a_failure_of_the_environment(server: _Server) -> None:
    """So that `env.on_failure` decides what becomes of it."""
    with closing(_Server()) as mortal, closing(make_env(mortal.settings(), 1, training=True)) as env:
        env.reset(0)
        mortal.close()
        with pytest.raises(EnvFailed):
            env.step(np.array([0]))


class _Listening(grpc.GenericRpcHandler):
    """Notes the names of the metadata of each call, and knows no method."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        """Note them."""
        self.seen += [name for name, _ in handler_call_details.invocation_metadata]


@pytest.mark.parametrize("has_ca", [True, False])
def test_server_is_called_without_the_secrets_of_the_cluster(
    has_ca: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plaintext and without the token, which are those of Tidemill's own services."""
    make(tmp_path)
    become(monkeypatch, ca=tmp_path / "ca.pem" if has_ca else None, token=tmp_path / "actor.token")
    listening = _Listening()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[listening])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(TidemillError):
            DmEnvRpc(f"127.0.0.1:{port}")
    finally:
        server.stop(None)
    assert listening.seen
    assert "authorization" not in listening.seen


def test_actions_become_spaces() -> None:
    """Numbers with a bound: real ones as they are, whole ones counted from the least."""
    real = _spec(1, [2], min={"floats": {"array": [-2]}}, max={"floats": {"array": [2, 3]}})
    box = _action_space(real)
    assert isinstance(box, gymnasium.spaces.Box)
    assert (box.low.tolist(), box.high.tolist()) == ([-2, -2], [2, 3])
    choices = _action_space(_spec(4, [2], min={"int32s": {"array": [0]}}, max={"int32s": {"array": [1, 4]}}))
    assert choices == gymnasium.spaces.MultiDiscrete([2, 5])
    assert _action_space(_spec(3, [], min={"int8s": {"array": b"\xff"}}, max={"int8s": {"array": b"\1"}})) == (
        gymnasium.spaces.Discrete(3)
    )
    for spec in (_spec(4, []), _spec(pb.STRING, [])):
        with pytest.raises(ConfigError, match=naming("'a'")):
            _action_space(spec)


class _Offline(DmEnvRpc):
    """An environment whose server offers one action and answers with one observation."""

    def __init__(self, action: dict[str, Any], observed: NDArray[Any]) -> None:
        """Take the spec of the action and what is observed."""
        self._observed, self.sent = pb.pack_tensor(observed), pb.pack_tensor(0)
        seen = {"name": "o", "shape": observed.shape, "dtype": pb.DTYPES.index(observed.dtype.name)}
        entries = [{"key": 1, "value": seen}, {"key": 2, "value": {"name": "reward", "dtype": 1}}]
        self._specs = {"actions": [{"key": 1, "value": {"name": "a", **action}}], "observations": entries}
        super().__init__("127.0.0.1:1", world="w")

    def _ask(self, **payload: Any) -> Any:  # noqa: ANN401 - a message without stubs
        if "join_world" in payload:
            return pb.EnvironmentResponse(join_world={"specs": self._specs}).join_world
        self.sent = payload["step"]["actions"][0]["value"] if payload["step"]["actions"] else self.sent
        return pb.EnvironmentResponse(step={"state": 1, "observations": [{"key": 1, "value": self._observed}]}).step


@pytest.mark.parametrize(
    "spec, action, sent",
    [
        ({"dtype": 1, "min": {"floats": {"array": [0]}}, "max": {"floats": {"array": [4]}}}, [0.5], np.float32(3)),
        (
            {"dtype": 4, "shape": [2, 2], "min": {"int32s": {"array": [-1]}}, "max": {"int32s": {"array": [1]}}},
            [0, 1, 2, 2],
            np.array([[-1, 0], [1, 1]], np.int32),
        ),
    ],
)
def test_action_has_the_shape_of_its_spec(spec: dict[str, Any], action: list[float], sent: object) -> None:
    """A server refuses another: one number without an axis, and whole numbers with two."""
    offline = _Offline(spec, np.zeros(1, np.float32))
    env = GymnasiumVectorEnv(lambda: offline, 1)
    env.reset(0)
    env.step(np.array([action], env.spec.action_dtype))
    assert offline.sent == pb.pack_tensor(sent)


def test_observation_that_float32_lacks_is_refused() -> None:
    """It would be another number; what fits is stored."""
    spec = {"dtype": 3, "min": {"int8s": {"array": b"\0"}}, "max": {"int8s": {"array": b"\1"}}}
    assert GymnasiumVectorEnv(lambda: _Offline(spec, np.array([7])), 1).reset(0).tolist() == [[7]]
    with pytest.raises(FatalError, match=naming("'o' int64 16777217 float32")):
        GymnasiumVectorEnv(lambda: _Offline(spec, np.array([2**24 + 1])), 1).reset(0)


def _spec(dtype: int, shape: list[int], **bounds: Any) -> Any:  # noqa: ANN401 - a message without stubs
    entry = {"key": 1, "value": {"name": "a", "dtype": dtype, "shape": shape, **bounds}}
    response = pb.EnvironmentResponse(join_world={"specs": {"actions": [entry]}})
    return response.join_world.specs.actions[0].value
