"""What a service for simulators is opened with, and what restarted ones know of each other."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.support.batches import DISTINCT_CASES
from tests.support.naming import naming
from tidemill.config.run import RunSettings
from tidemill.config.sections import InferenceConfig
from tidemill.config.services import InferenceSettings
from tidemill.envs.settings import EnvSettings
from tidemill.errors import FatalError
from tidemill.inference.wire import Answer
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import SplitPolicy
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.services.inference import open_simulators
from tidemill.services.inference.__main__ import request_limit
from tidemill.services.inference.episode import Episode
from tidemill.services.inference.open_simulators import exploration_seeds, serve_simulators, writer_name
from tidemill.services.inference.resume_token import Identity, Place, place_of
from tidemill.settings.check import is_safe_name
from tidemill.simulator.wire import Declared, SeenStep, pack_open, unpack_open
from tidemill.types import EnvSpec, ObservationPart


def test_writer_name_is_one_for_each_service_and_run() -> None:
    """And a name that the replay service takes."""
    names = {writer_name(run, index) for run in ("a", "b/c") for index in range(2)}
    assert len(names) == 4
    assert all(map(is_safe_name, names))


def test_token_says_where_an_episode_is() -> None:
    """Only to who has its key; one that was changed anywhere says nothing."""
    key, place = b"k" * 32, Place(epoch=7, slot=3, begin=2**40, nonce=bytes(range(16)))
    token = place.signed(key)
    assert place_of(token, key) == place
    assert place_of(token, b"x" * 32) is None
    for at in range(len(token)):
        changed = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
        assert place_of(changed, key) is None
    assert place_of(token[:-1], key) is None
    assert place_of(b"", key) is None


def test_identity_outlives_the_process(tmp_path: Path) -> None:
    """In a file that others cannot read; a damaged one is as good as none."""
    file = tmp_path / "simulators" / "x.json"
    first = Identity(file)
    first.keep(5)
    second = Identity(file)
    assert (second.key, second.epoch) == (first.key, 5)
    assert file.stat().st_mode & 0o077 == 0
    place = Place(epoch=5, slot=3, begin=9, nonce=bytes(16))
    assert second.moved(place) == place
    moved = second.move(place, 4)
    assert (moved.begin, Identity(file).moved(place)) == (4, moved)
    another = Place(epoch=5, slot=3, begin=9, nonce=bytes(15) + b"1")
    assert Identity(file).moved(another) == another
    file.write_text("{")
    third = Identity(file)
    assert third.epoch == 0
    assert third.key != first.key
    unkept = Identity(None)
    unkept.keep(5)
    assert unkept.epoch == 5


def test_identity_that_cannot_be_read_now_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service fails, and its next start knows the episodes; a new key would end them."""
    file = tmp_path / "simulators" / "x.json"
    first = Identity(file)
    first.keep(5)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(FatalError, match=naming(str(file), "Input/output error")):
            Identity(file).keep(6)
    assert Identity(file).key == first.key


def _new_run(folder: Path) -> RunSettings:
    """A run that the launcher starts, so that no parameter server is asked."""
    return RunSettings(root=str(folder), continued_from=0)


def _opened(run: InferenceConfig, spec: EnvSpec, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The parts that the simulators of a service on another device are made from."""
    opened = dict[str, Any]()
    unused: Any = SimpleNamespace(epoch=0, superseded_epoch=0, next_steps=np.zeros(4, np.int64))

    def simulators(*parts: Any, **settings: Any) -> Any:  # noqa: ANN401 - those of `Simulators`
        opened.update(settings, new_episode=parts[2], explorer=parts[3])
        return unused

    monkeypatch.setattr(open_simulators, "open_simulator_writer", lambda *_: unused)
    monkeypatch.setattr(open_simulators, "SimulatorMetrics", lambda: unused)  # registers them once a process
    monkeypatch.setattr(open_simulators, "Simulators", simulators)
    policy, device = build_policy(run.agent, spec), torch.device("meta")
    asyncio.run(serve_simulators(run, spec, policy, device, unused, lambda _: None, threading.Event()))
    assert opened["device"] == device
    return opened


def test_simulators_of_a_resumed_run_explore_otherwise_whatever_the_replay_service_knows() -> None:
    """Without its log they have no streams to continue; the same resume repeats them."""
    unused: Any = SimpleNamespace(superseded_epoch=0, next_steps=np.zeros(4, np.int64))
    seeds = [exploration_seeds(InferenceConfig(run=RunSettings(continued_from=n)), unused) for n in (0, 7, 7)]
    assert seeds[0] != seeds[1] == seeds[2]


@pytest.mark.parametrize("name", DISTINCT_CASES)
def test_simulators_explore_on_the_cpu_wherever_the_network_is(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The network's numbers reach an episode in the host's memory. Noise is drawn where the network is."""
    config, spec = DISTINCT_CASES[name]
    run = InferenceConfig(run=_new_run(tmp_path), agent=config, inference=InferenceSettings(simulators=4))
    opened, policy = _opened(run, spec, monkeypatch), build_policy(config, spec)
    explorer: Callable[[int], SplitPolicy] = opened["explorer"]
    episode: Episode = opened["new_episode"](0)
    mask = np.ones(sum(spec.action_options), np.bool_) if spec.masks_actions else None
    seen = SeenStep(0, np.ones(spec.observation_shape, spec.observation_dtype), 0.0, action_mask=mask)
    policy_input = episode.see(seen)
    assert policy_input is not None
    assert isinstance(policy, SplitPolicy)
    numbers = {name: tensor.numpy() for name, tensor in policy.forward(policy_input).items()}
    acted = episode.act(seen, policy_input, Answer(1, 0, 0, numbers), explorer(2), env_steps=0)
    assert acted.output.action.shape == (1, *spec.action_shape)


@pytest.mark.parametrize(
    "env, learned",
    [
        (EnvSettings("ALE/Pong-v5"), 1.0),
        (EnvSettings("ALE/Pong-v5", clip_rewards=False), 5.0),
        (EnvSettings("CartPole-v1"), 5.0),
    ],
)
def test_rewards_of_simulators_are_clipped_as_those_of_actors(
    env: EnvSettings, learned: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`env.clip_rewards` is of Atari games, whoever plays them."""
    inference, agent = InferenceSettings(simulators=4), DQNConfig(network="mlp", hidden_sizes=(4,))
    run = InferenceConfig(run=_new_run(tmp_path), env=env, agent=agent, inference=inference)
    opened = _opened(run, EnvSpec((1,), "float32", num_actions=2), monkeypatch)
    policy_input = opened["new_episode"](1).see(SeenStep(1, np.zeros(1, np.float32), 5.0))
    assert policy_input.last_reward.tolist() == [learned]


_MANY_CHOICES = EnvSpec((4,), "float32", action_shape=(40_000,), action_sizes=(300,) * 40_000)
_PARTS = tuple(ObservationPart(f"{number}", "uint8", (1,)) for number in range(5000))
_MANY_PARTS = EnvSpec((), "uint8", num_actions=2, observation_parts=_PARTS)


@pytest.mark.parametrize("spec", [_MANY_CHOICES, _MANY_PARTS])
def test_opening_of_the_spaces_of_the_run_is_taken(spec: EnvSpec) -> None:
    """However many choices or parts these have: it is within the server's limit, and unpacked."""
    opening = pack_open(Declared("x", spec))
    limit = request_limit(InferenceConfig(inference=InferenceSettings(max_batch=1)), spec, 0)
    assert opening.ByteSize() <= limit.request_limit_bytes
    assert unpack_open(opening, spec).spec == spec


def test_server_takes_openings_that_are_refused_by_name() -> None:
    """Of 64 KiB, also where actors' requests and steps are far shorter."""
    spec = EnvSpec((4,), "float32", num_actions=2)
    assert request_limit(InferenceConfig(), spec, 0).request_limit_bytes >= 64 * 1024
