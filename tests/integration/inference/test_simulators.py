"""Programs that play as clients, over real servers: what is stored, and what becomes of it when something breaks."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch

from tests.support.batches import CASES
from tests.support.free_ports import free_address
from tests.support.inference_service import params_of, state_of
from tests.support.naming import because, naming
from tests.support.replay_service import local_server, server_process
from tests.support.simulator_service import CHUNK, create_table, local_simulators, stored_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, ResourceExhausted, Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.impala import IMPALAAgent
from tidemill.rl.agents.on_policy import rollouts
from tidemill.rl.settings.on_policy import IMPALAConfig
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rpc import open_calls
from tidemill.rpc.channel import open_channel
from tidemill.rpc.status import translated
from tidemill.services.inference.resume_token import Identity
from tidemill.services.launcher.view.curves import training_return
from tidemill.simulator import client as client_module
from tidemill.simulator.client import SimulatorClient
from tidemill.simulator.evaluation import ClientEpisodes, evaluate
from tidemill.simulator.v1 import simulator_pb2 as pb
from tidemill.simulator.v1 import simulator_pb2_grpc
from tidemill.simulator.wire import Declared, pack_open
from tidemill.types import EnvSpec

_SPEC = EnvSpec((2,), "float32", num_actions=3)
_DQN = DQNConfig(network="mlp", hidden_sizes=(8,), dueling=False, n_step=1)


_PLAYED = (
    "dqn",
    "dqn_image",
    "dqn_rainbow",
    "dqn_munchausen",
    "r2d2",
    "sac",
    "sac_lstm",
    "td3",
    "td3_lstm",
    "d4pg",
    "dqn_normalized",
    "sac_normalized",
    "ppo",
    "ppo_lstm",
    "ppo_normalized",
    "pqn",
)


def _play(client: SimulatorClient, episode: int, length: int, end: str = "terminated", first: int = 0) -> list[int]:
    """Play an episode whose observations are (episode, step) and whose reward of step t is t; return its actions."""
    actions = [client.begin(np.array([episode, 0], np.float32))] if not first else []
    for step in range(max(first, 1), length + 1):
        ends = {end: True} if step == length else {}
        actions.append(client.step(np.array([episode, step], np.float32), step, **ends))
    return actions


def _firsts(items: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """Return (episode, step) of the first step of each item, sorted."""
    return sorted((int(e), int(s)) for e, s in items["observation"][:, 0])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_episodes_are_stored_whole(end: str) -> None:
    """Each decision once, with the reward that it brought and the action that was given out."""
    with local_server() as replay:
        table = create_table(replay.address, _DQN, _SPEC)
        with local_simulators(replay.address, _DQN, _SPEC) as service:
            with SimulatorClient(service.address, _SPEC) as client:
                actions = {episode: _play(client, episode, 6, end) for episode in range(3)}
                assert client.run == "test"
                assert client.params_version == 3
            service.flush()
            items = stored_items(replay.address, table)
            assert service.metric("tidemill_simulator_episodes_total", end=end) == 3
    assert all(each[-1] is None for each in actions.values())
    decided = items["is_first"].shape[0]
    assert decided
    firsts = _firsts(items)
    assert len(set(firsts)) == len(firsts)
    assert {(e, s) for e, s in firsts if e < 2} == {(e, s) for e in range(2) for s in range(6)}
    for (episode, step), action, reward in zip(
        items["observation"][:, 0].astype(int).tolist(), items["action"][:, 0], items["reward"][:, 0], strict=True
    ):
        assert reward == step + 1
        assert action == actions[episode][step]


@pytest.mark.parametrize("name", _PLAYED)
def test_every_algorithm_plays(name: str) -> None:
    """With its stacks, recurrent states and payloads, on a prioritized table."""
    config, spec = CASES[name]
    if spec.masks_actions:
        pytest.skip("its client would need masks")
    rng = np.random.default_rng(0)
    seen = rng.integers(0, 255, (2, 31, *spec.observation_shape)).astype(spec.observation_dtype)
    with local_server() as replay:
        table = create_table(replay.address, config, spec, sampler=SelectorConfig(SelectorKind.PRIORITIZED))
        with local_simulators(replay.address, config, spec, sampler="prioritized") as service:
            with SimulatorClient(service.address, spec) as client:
                for episode, end in zip(seen, ("terminated", "truncated"), strict=True):
                    client.begin(episode[0])
                    for step in range(1, 31):
                        client.step(episode[step], 0.5, **{end: step == 30})
            service.flush()
            assert not service.errors
            assert stored_items(replay.address, table)


def test_rollouts_of_simulators_are_corrected_for_nothing_by_the_version_that_acted() -> None:
    """V-trace's ratios are 1: the probabilities that are stored are those of the actions that were given out."""
    config, spec = CASES["impala"]
    assert isinstance(config, IMPALAConfig)
    rng = np.random.default_rng(0)
    with local_server() as replay:
        table = create_table(replay.address, config, spec)
        with local_simulators(replay.address, config, spec) as service:
            with SimulatorClient(service.address, spec) as client:
                for length in (3, 7, 20, 31):
                    client.begin(rng.normal(size=spec.observation_shape).astype(np.float32))
                    for step in range(1, length + 1):
                        seen = rng.normal(size=spec.observation_shape).astype(np.float32)
                        is_over = step == length
                        client.step(seen, 0.5, terminated=is_over and length == 7, truncated=is_over and length != 7)
            service.flush()
            assert not service.errors
        items = stored_items(replay.address, table)
    flat = {key: values.reshape(-1, *values.shape[2:]) for key, values in items.items()}
    count, length = items["reward"].shape
    assert count >= 8
    index = np.arange(count * length).reshape(count, length)
    batch = rollouts(flat, index, config.window(1), 1, config.gamma)
    agent = build_agent(config, spec, seed=7)
    assert isinstance(agent, IMPALAAgent)
    _, metrics = agent.loss({key: torch.from_numpy(values) for key, values in batch.items()}, torch.ones(count))
    assert metrics["rho"].item() == pytest.approx(1.0, abs=1e-5)
    assert 0 < batch["is_trained"].mean() < 1


def test_action_that_a_client_takes_by_itself_is_stored() -> None:
    """And it is what the answer says."""
    with local_server() as replay:
        table = create_table(replay.address, _DQN, _SPEC)
        with local_simulators(replay.address, _DQN, _SPEC) as service:
            with SimulatorClient(service.address, _SPEC) as client:
                assert client.begin(np.zeros(2, np.float32), action=2) == 2
                for step in range(1, 9):
                    assert client.step(np.array([0, step], np.float32), 1.0, action=step % 3) == step % 3
            service.flush()
            items = stored_items(replay.address, table)
    steps = items["observation"][:, 0, 1].astype(int)
    assert (items["action"][:, 0] == np.where(steps == 0, 2, steps % 3)).all()


def test_evaluation_is_counted_and_not_stored() -> None:
    """It is played by the best actions, the same ones each time."""
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC) as service,
            SimulatorClient(service.address, _SPEC) as client,
        ):
            played = []
            for _ in range(2):
                actions = [client.begin(np.zeros(2, np.float32), evaluate=True)]
                actions += [client.step(np.array([0, n], np.float32), 1.0, terminated=n == 5) for n in range(1, 6)]
                played.append(actions)
            assert played[0] == played[1]
            assert service.metric("tidemill_simulator_evaluation_return_sum") == 10.0
            assert service.writer.next_steps.sum() == 0


def test_evaluation_is_played_with_its_version_and_not_stored() -> None:
    """The next episodes are its, to their ends, whatever is published meanwhile; then clients explore again."""
    versions = {2: params_of(state_of(_DQN, _SPEC, seed=1), 2)}
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC, versions=versions))
        channel = stack.enter_context(open_channel(service.address))
        client = stack.enter_context(SimulatorClient(service.address, _SPEC))
        call = _Evaluating(channel, 2, 2)
        seen = set[int]()
        while not call.is_over:
            assert call.error is None
            client.begin(np.zeros(2, np.float32))
            seen.add(client.params_version)
            for step in range(1, 5):
                client.step(np.array([0, step], np.float32), step, terminated=step == 4)
        played = call.result()
        assert (played.returns, played.lengths, played.failed) == ([10.0, 10.0], [4, 4], 0)
        assert 2 in seen
        _play(client, 0, 4)
        assert client.params_version == 3
        assert service.metric("tidemill_simulator_evaluation_return_count") == 2


def test_evaluation_leaves_out_an_episode_of_a_client_that_is_gone_or_acts_by_itself() -> None:
    """Each is told as failed, and counts in no score."""
    versions = {2: params_of(state_of(_DQN, _SPEC), 2)}
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC, versions=versions))
        channel = stack.enter_context(open_channel(service.address))
        call = _Evaluating(channel, 2, 3)
        gone, own, good = (stack.enter_context(SimulatorClient(service.address, _SPEC)) for _ in range(3))
        for client in (gone, own, good):
            _until_evaluated(client)
        gone._drop()
        assert own.step(np.zeros(2, np.float32), 50.0, action=1) == 1
        own.step(np.zeros(2, np.float32), 50.0, terminated=True)
        good.step(np.zeros(2, np.float32), 7.0, truncated=True)
        wait_until(lambda: call.is_over, "the evaluation")
        played = call.result()
        assert (played.returns, played.lengths, played.failed) == ([7.0], [1], 2)
        assert service.metric("tidemill_simulator_episodes_total", end="reported") == 1


def test_last_evaluation_frees_clients_that_the_limiter_holds() -> None:
    """When the learner is gone nobody samples any more; the clients' steps are then no longer stored."""
    versions = {2: params_of(state_of(_DQN, _SPEC), 2)}
    with local_server() as replay, ExitStack() as stack:
        limiter = RateLimiterConfig(min_size=1, samples_per_insert=1.0, error_buffer=2 * CHUNK)
        create_table(replay.address, _DQN, _SPEC, rate_limiter=limiter)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC, versions=versions))
        channel = stack.enter_context(open_channel(service.address))
        client = stack.enter_context(SimulatorClient(service.address, _SPEC))
        over = threading.Event()

        def play() -> None:
            while not over.is_set():
                _play(client, 0, 100)

        player = threading.Thread(target=play)
        player.start()
        stack.callback(player.join, WAIT_S)
        stack.callback(over.set)
        wait_until(lambda: service.writer.unacknowledged_chunks >= 2, "the limiter")
        call = _Evaluating(channel, 2, 1, is_last=True)
        wait_until(lambda: call.is_over, "the evaluation")
        assert call.result().lengths == [100]
        refused = _Evaluating(channel, 2, 1)
        wait_until(lambda: refused.is_over, "the refusal")
        assert isinstance(refused.error, FailedPrecondition)
        assert refused.error.reason is Reason.EVALUATION_OVER


def test_second_evaluation_replaces_the_first() -> None:
    """The first is told that another evaluator measures the run."""
    versions = {2: params_of(state_of(_DQN, _SPEC), 2)}
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC, versions=versions))
        channel = stack.enter_context(open_channel(service.address))
        calls = [_Evaluating(channel, 2, 1) for _ in range(2)]
        wait_until(lambda: any(call.is_over for call in calls), "one to be replaced")
        (error,) = [call.error for call in calls if call.is_over]
        assert isinstance(error, FailedPrecondition)
        assert error.reason is Reason.EVALUATION_REPLACED


def test_client_does_not_take_back_an_episode_that_another_continues() -> None:
    """Two programs with one resume token would otherwise take it from each other at every step."""
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC) as service,
            SimulatorClient(service.address, _SPEC) as first,
            SimulatorClient(service.address, _SPEC) as second,
        ):
            _begin(first, 3)
            second._declared, second._next_step, second._is_playing = first._declared, first._next_step, True
            second._kept.extend(first._kept)
            assert second.step(np.array([0, 3], np.float32), 1.0) is not None
            with pytest.raises(Unavailable, check=because(Reason.CALL_REPLACED)):
                first.step(np.array([0, 3], np.float32), 1.0)
            assert second.step(np.array([0, 4], np.float32), 1.0) is not None
            assert first.begin(np.zeros(2, np.float32)) is not None


def test_service_that_cannot_store_says_so() -> None:
    """The client is told that a service behind this one is the cause."""
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC) as service,
            SimulatorClient(service.address, _SPEC, timeout_s=0.0) as client,
        ):
            _begin(client, 2)
            service.writer.close()
            with pytest.raises(Unavailable, check=because(Reason.DEPENDENCY_UNAVAILABLE)):
                _play(client, 0, 4 * CHUNK, first=2)


def test_evaluation_names_what_is_wrong() -> None:
    """The field, the value and what is allowed."""
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC))
        channel = stack.enter_context(open_channel(service.address))
        stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
        for fields, message in (
            ({"params_version": 0, "episodes": 1}, "params_version 0 1"),
            ({"params_version": 1, "episodes": 0}, "episodes 0 1 100000"),
            ({"params_version": 1, "episodes": 1, "epsilon": 1.5}, "epsilon 1.5 0 1"),
        ):
            with pytest.raises(InvalidArgument, match=naming(message)), translated():
                next(stub.Evaluate(pb.EvaluateRequest(**fields)))


class _Evaluating:
    """An evaluation that another thread waits for."""

    def __init__(self, channel: grpc.Channel, version: int, episodes: int, *, is_last: bool = False) -> None:
        self.error: BaseException | None = None
        self._played: ClientEpisodes | None = None

        def run() -> None:
            try:
                self._played = evaluate(
                    channel, version, episodes, epsilon=0.0, is_last=is_last, is_stopped=lambda: False
                )
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> ClientEpisodes:
        self._thread.join(WAIT_S)
        assert self._played is not None, self.error
        return self._played


def _until_evaluated(client: SimulatorClient) -> None:
    """Begin episodes until one is part of the evaluation of version 2."""

    def is_part() -> bool:
        client.begin(np.zeros(2, np.float32))
        return client.params_version == 2

    wait_until(is_part, "an episode of the evaluation")


def test_returns_of_clients_are_curves_of_the_run(tmp_path: Path) -> None:
    """Those with exploration are the run's training return, as actors' are; those of evaluations have a curve.

    Both are over the decisions of the whole cluster, of which this replay server stores a part.
    """
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC, run=tmp_path, env_steps=9_000) as service,
            SimulatorClient(service.address, _SPEC) as client,
        ):
            _play(client, 0, 4)
            client.begin(np.zeros(2, np.float32), evaluate=True)
            client.step(np.zeros(2, np.float32), 7.0, terminated=True)
            client.begin(np.zeros(2, np.float32))  # abandoned: its return is not known
            wait_until(lambda: "7.0" in _newest_point(tmp_path), "a point")
            point = json.loads(_newest_point(tmp_path))
    assert (point["actor/episode_return"], point["simulator/evaluation_return"]) == (1 + 2 + 3 + 4, 7.0)
    assert (point["env_steps"], point["step"]) == (9_000, 30)
    assert training_return(tmp_path) == 10.0


def _newest_point(run: Path) -> str:
    file = run / "curves" / "inference-0.jsonl"
    return file.read_text().strip().rpartition("\n")[2] if file.exists() else ""


def test_call_that_breaks_is_continued_exactly_once() -> None:
    """Wherever it breaks: the client asks again with its token, and a step that had arrived is known to have."""
    with local_server() as replay:
        table = create_table(replay.address, _DQN, _SPEC)
        with local_simulators(replay.address, _DQN, _SPEC) as service:
            with SimulatorClient(service.address, _SPEC) as client:
                client.begin(np.zeros(2, np.float32))
                for step in range(1, 40):
                    if step % 7 == 0:
                        client._drop()  # as a network would
                    assert client.step(np.array([0, step], np.float32), step) is not None
            wait_until(lambda: service.metric("tidemill_simulator_episodes_total", end="abandoned") == 1, "its end")
            service.flush()
            assert _firsts(stored_items(replay.address, table)) == [(0, step) for step in range(39)]


@pytest.mark.parametrize("kept", [True, False])
def test_service_that_is_restarted_loses_and_doubles_no_step(kept: bool, tmp_path: Path) -> None:
    """The client sends again what was not stored; where nothing was kept for it, the episode ends."""
    identity = tmp_path / "kept.json" if kept else None
    with local_server() as replay, ExitStack() as stack:
        table = create_table(replay.address, _DQN, _SPEC)
        address = free_address()
        client = stack.enter_context(SimulatorClient(address, _SPEC, timeout_s=WAIT_S))
        with local_simulators(replay.address, _DQN, _SPEC, address=address, identity=identity):
            client.begin(np.zeros(2, np.float32))
            for step in range(1, 30):
                client.step(np.array([0, step], np.float32), step)
        with local_simulators(replay.address, _DQN, _SPEC, address=address, identity=identity) as service:
            answer = client.step(np.array([0, 30], np.float32), 30)
            assert (answer is not None) == kept
            if kept:
                assert _play(client, 0, 40, first=31)[-1] is None
                assert service.metric("tidemill_simulator_episodes_total", end="terminated") == 1
                assert service.metric("tidemill_simulator_episode_return_count") == 0, "its first rewards are not known"
            client.close()
            service.flush()
            firsts = _firsts(stored_items(replay.address, table))
            items = stored_items(replay.address, table)
    assert len(set(firsts)) == len(firsts)
    if kept:
        seen = {int(step) for step in items["observation"][:, :, 1].reshape(-1)}
        assert seen == set(range(41))
        assert len(firsts) >= 40 - 2  # an item across the restart is not made


@pytest.mark.parametrize("change", ["shards", "slots", "superseded"])
def test_service_that_cannot_continue_its_streams_begins_new_ones(change: str, tmp_path: Path) -> None:
    """Of several servers, with another number of slots, or behind a newer writer: the client begins another episode."""
    with ExitStack() as stack:
        servers = [stack.enter_context(local_server()) for _ in range(2 if change == "shards" else 1)]
        replay, address = tuple(server.address for server in servers), free_address()
        for each in replay:
            create_table(each, _DQN, _SPEC)
        client = stack.enter_context(SimulatorClient(address, _SPEC, timeout_s=WAIT_S))
        with local_simulators(replay, _DQN, _SPEC, address=address, identity=tmp_path / "kept") as service:
            _begin(client, 30)
            service.flush()
        if change == "superseded":
            with local_simulators(replay, _DQN, _SPEC) as newer, SimulatorClient(newer.address, _SPEC) as another:
                _play(another, 0, 10)
                newer.flush()
        slots = 8 if change == "slots" else 4
        with local_simulators(replay, _DQN, _SPEC, address=address, identity=tmp_path / "kept", slots=slots) as service:
            assert client.step(np.array([0, 30], np.float32), 1.0) is None
            assert service.writer.stored_steps.sum() == 0
            _play(client, 1, 10)
            service.flush()
            assert service.writer.stored_steps.sum() >= 10


def test_streams_that_took_the_place_of_lost_ones_are_known_to_a_restarted_service(tmp_path: Path) -> None:
    """From their first step on, though the episode began before the replay server lost the former ones."""
    with server_process() as replay, ExitStack() as stack:
        table = create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC, identity=tmp_path / "kept"))
        client = stack.enter_context(SimulatorClient(service.address, _SPEC))
        _begin(client, 2 * CHUNK)
        lost = service.writer.epoch
        replay.close()
        replay.start()
        with ReplayClient(replay.address) as creates:
            creates.create_table(table)
        wait_until(lambda: service.writer.epoch != lost, "the new streams")
        for step in range(2 * CHUNK, 4 * CHUNK):
            client.step(np.array([0, step], np.float32), 1.0)
        assert Identity(tmp_path / "kept").epoch == service.writer.epoch


def _explored(replay: str, identity: Path, name: str = "simulators", index: int = 0) -> tuple[int, ...]:
    """Return the actions of the first episode that a service plays, all of them drawn at random."""
    config = replace(_DQN, exploration="schedule", epsilon_start=1.0, epsilon_final=1.0)
    with local_simulators(replay, config, _SPEC, identity=identity, name=name, index=index) as service:
        with SimulatorClient(service.address, _SPEC) as client:
            actions = _play(client, 0, 40)
        service.flush()
    return tuple(actions[:-1])


def test_services_explore_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same slot, also after a restart; a service that begins as another one did draws the same."""
    begun = []
    for number in range(2):
        with local_server() as replay:
            create_table(replay.address, _DQN, _SPEC)
            first = _explored(replay.address, tmp_path / f"{number}-first")
            restarted = _explored(replay.address, tmp_path / f"{number}-first")
            forgetful = _explored(replay.address, tmp_path / f"{number}-forgetful")
            second = _explored(replay.address, tmp_path / f"{number}-second", name="second", index=1)
            with monkeypatch.context() as patched:
                patched.setattr(socket, "gethostname", lambda: "another")
                distant = _explored(replay.address, tmp_path / f"{number}-distant", name="distant")
        assert len({first, restarted, forgetful, second, distant}) == 5
        begun.append(first)
    assert begun[0] == begun[1]


def test_steps_sent_again_are_what_they_were(tmp_path: Path) -> None:
    """Though the program refills one buffer of observations and scales the actions that it is given in place."""
    config, spec = CASES["sac"]
    observation, taken = np.zeros(spec.observation_shape, np.float32), []
    with local_server() as replay, ExitStack() as stack:
        table, address = create_table(replay.address, config, spec), free_address()
        client = stack.enter_context(SimulatorClient(address, spec, timeout_s=WAIT_S))
        for steps in (range(30), range(30, 40)):
            with local_simulators(replay.address, config, spec, address=address, identity=tmp_path / "kept") as service:
                for step in steps:
                    observation[:] = step
                    action = client.step(observation, 1.0) if step else client.begin(observation)
                    taken.append(action.copy())
                    action *= 9
                if steps.stop == 40:
                    client.step(observation, 1.0, terminated=True)
                    service.flush()
        items = stored_items(replay.address, table)
    numbers = items["observation"][..., 0].astype(int)
    assert set(range(40)) == set(numbers.flat)
    np.testing.assert_array_equal(items["action"], np.array(taken)[numbers])


@pytest.mark.parametrize("length", [1, 5, 7])
def test_episode_continues_whose_service_lost_the_end_of_the_one_before(length: int, tmp_path: Path) -> None:
    """Its first steps were in the chunk that was lost; each of its steps is stored once, over further restarts, too."""
    with local_server() as replay, ExitStack() as stack:
        table, address = create_table(replay.address, _DQN, _SPEC), free_address()
        client = stack.enter_context(SimulatorClient(address, _SPEC, timeout_s=WAIT_S))
        reached = 0
        for newest in (2, 3, 20, 21, 40):
            with local_simulators(replay.address, _DQN, _SPEC, address=address, identity=tmp_path / "kept") as service:
                if not reached:
                    _play(client, 0, length)
                    client.begin(np.array([1, 0], np.float32))
                for step in range(reached + 1, newest + 1):
                    assert client.step(np.array([1, step], np.float32), step) is not None
                reached = newest
                if newest == 40:
                    client.close()
                    wait_until(lambda: service.metric("tidemill_simulator_episodes_total", end="abandoned") == 1, "it")
                    service.flush()
        items = stored_items(replay.address, table)
    firsts = [step for episode, step in _firsts(items) if episode == 1]
    assert len(set(firsts)) == len(firsts)
    steps = items["observation"].reshape(-1, 2)
    assert {int(step) for episode, step in steps if episode == 1} == set(range(41))
    assert len(firsts) >= 40 - 4  # an item across a restart is not made


def test_client_that_is_gone_frees_its_slot_after_a_while() -> None:
    """Its episode ends as truncated, and another may come; until then all slots are taken."""
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with local_simulators(replay.address, _DQN, _SPEC, slots=1, grace_s=1.0) as service:
            first = SimulatorClient(service.address, _SPEC)
            _begin(first, 5)
            with (
                SimulatorClient(service.address, _SPEC, timeout_s=0.0) as second,
                pytest.raises(
                    ResourceExhausted, match=naming("1 inference.simulators"), check=because(Reason.TOO_MANY_CALLS)
                ),
            ):
                second.begin(np.zeros(2, np.float32))
            first._drop()
            with SimulatorClient(service.address, _SPEC, timeout_s=WAIT_S) as third:
                assert third.begin(np.zeros(2, np.float32)) is not None
                assert service.metric("tidemill_simulator_episodes_total", end="abandoned") == 1


def _begin(client: SimulatorClient, steps: int) -> None:
    client.begin(np.zeros(2, np.float32))
    for step in range(1, steps):
        client.step(np.array([0, step], np.float32), 1.0)


def test_idle_client_does_not_hold_others_up() -> None:
    """One that has stopped sending costs the others no more than one batch's longest wait."""
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC, max_wait_s=0.1) as service,
            SimulatorClient(service.address, _SPEC) as idle,
            SimulatorClient(service.address, _SPEC) as busy,
        ):
            _begin(idle, 5)
            _begin(busy, 200)
            assert service.metric("tidemill_simulator_steps_total") == 205
            assert service.metric("tidemill_inference_batches_total", cause="deadline") <= 1


def test_client_that_sends_nothing_is_left_out() -> None:
    """After `inference.simulator_timeout_s`; one that comes back continues."""
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC, timeout_s=0.2) as service,
            SimulatorClient(service.address, _SPEC, timeout_s=WAIT_S) as client,
        ):
            _begin(client, 3)
            wait_until(lambda: _is_ended(client), "the call to end")
            assert client.step(np.array([0, 3], np.float32), 1.0) is not None
            assert service.metric("tidemill_simulator_episodes_total", end="abandoned") == 0


def _is_ended(client: SimulatorClient) -> bool:
    assert client._call is not None
    return bool(client._call._responses.done())


def test_learner_paces_simulators() -> None:
    """An answer waits while the rate limiter holds writers back, and comes when samples are drawn."""
    with local_server() as replay:
        limiter = RateLimiterConfig(min_size=1, samples_per_insert=1.0, error_buffer=2 * CHUNK)
        table = create_table(replay.address, _DQN, _SPEC, rate_limiter=limiter)
        with (
            local_simulators(replay.address, _DQN, _SPEC) as service,
            SimulatorClient(service.address, _SPEC) as client,
        ):
            made = 0

            def play() -> None:
                nonlocal made
                client.begin(np.zeros(2, np.float32))
                while made < 100:
                    client.step(np.array([0, made], np.float32), 1.0)
                    made += 1

            player = threading.Thread(target=play)
            player.start()
            wait_until(lambda: service.writer.unacknowledged_chunks >= 8 or made >= 100, "the limiter")
            held_at = made
            assert held_at < 100
            with ReplaySampler([replay.address], table, 1) as samples:
                while player.is_alive():
                    samples.take(0.05)
            assert made == 100


def test_spaces_are_compared_by_name() -> None:
    """One line names the client, the field, the value and what is allowed."""
    cases = {
        EnvSpec((3,), "float32", num_actions=3): "observation 'observation' float32 [3] float32 [2]",
        EnvSpec((2,), "uint8", num_actions=3): "uint8 [2] float32 [2]",
        EnvSpec((2,), "float32", num_actions=4): "num_actions 4 3",
        EnvSpec((2,), "float32", action_shape=(2,)): "num_actions 0 action_shape [2]",
    }
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with local_simulators(replay.address, _DQN, _SPEC) as service:
            for spec, message in cases.items():
                with SimulatorClient(service.address, spec, name="game-1") as client:
                    with pytest.raises(
                        FailedPrecondition,
                        match=naming("client 'game-1' run 'test'", message),
                        check=because(Reason.SPACES_DIFFER),
                    ):
                        client.begin(np.zeros(spec.observation_shape, spec.observation_dtype))
                    assert client._call is None, "the next try would hear the same without asking"


def test_step_that_ends_the_game_needs_no_mask_and_no_action() -> None:
    """There is no legal action any more, whatever is sent; before the end, each step has at least one."""
    spec = EnvSpec((2,), "float32", num_actions=3, masks_actions=True)
    mask = [False, True, False]
    with local_server() as replay:
        create_table(replay.address, _DQN, spec)
        with (
            local_simulators(replay.address, _DQN, spec) as service,
            SimulatorClient(service.address, spec) as client,
        ):
            for last in ({}, {"action_mask": [False] * 3}, {"action": 3}):
                assert client.begin(np.zeros(2, np.float32), action_mask=mask) == 1
                assert client.step(np.zeros(2, np.float32), 1.0, action_mask=mask) == 1
                assert client.step(np.zeros(2, np.float32), 1.0, terminated=True, **last) is None
            with pytest.raises(InvalidArgument, match=naming("action_mask 0 3")):
                client.begin(np.zeros(2, np.float32))


def test_bad_step_is_refused_by_name() -> None:
    """And ends the episode; the client may begin another."""
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC) as service,
            SimulatorClient(service.address, _SPEC, name="game-1") as client,
        ):
            _begin(client, 3)
            with pytest.raises(InvalidArgument, match=naming("'game-1' observation 'observation' nan")):
                client.step(np.array([0, np.nan], np.float32), 1.0)
            with pytest.raises(FailedPrecondition, match=naming("begin")):
                client.step(np.zeros(2, np.float32), 1.0)
            _begin(client, 3)
            with pytest.raises(InvalidArgument, match=naming("reward inf 3 finite")):
                client.step(np.zeros(2, np.float32), float("inf"))
            with pytest.raises(InvalidArgument, match=naming("action.choices[0] 3 0 2")):
                client.begin(np.zeros(2, np.float32), action=3)
            _begin(client, 3)


def test_calls_are_bounded() -> None:
    """However many are opened; each must say who it is."""
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC, slots=1))
        channel = stack.enter_context(open_channel(service.address))
        stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
        ended = threading.Event()
        stack.callback(ended.set)

        def silent() -> Iterator[pb.PlayRequest]:
            ended.wait(WAIT_S)
            yield from ()

        calls = []

        def is_bounded() -> bool:
            calls.append(stub.Play(silent()))  # one that comes while the call below is open may be refused itself
            return _refused(stub)

        wait_until(is_bounded, "the bound on calls")
        for call in calls:
            call.cancel()


def _refused(stub: simulator_pb2_grpc.SimulatorServiceStub) -> bool:
    opening = pack_open(Declared("late", _SPEC))
    try:
        with translated():
            next(stub.Play(iter([opening])))
    except ResourceExhausted as error:
        return "2 calls are open" in str(error) and "(inference.simulators)" in str(error)
    return False


def test_address_has_a_share_of_the_slots() -> None:
    """A client too many is told so by name; when one leaves, the next gets its slot."""
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC, slots_per_caller=2))
        first, second = (stack.enter_context(SimulatorClient(service.address, _SPEC)) for _ in range(2))
        _begin(first, 3)
        _begin(second, 3)
        with (
            SimulatorClient(service.address, _SPEC, name="game-3", timeout_s=0.0) as third,
            pytest.raises(
                ResourceExhausted,
                match=naming("'game-3' 2 127.0.0.1 2 (inference.simulators_per_client)"),
                check=because(Reason.TOO_MANY_CALLS),
            ),
        ):
            third.begin(np.zeros(2, np.float32))
        second.close()
        with SimulatorClient(service.address, _SPEC, timeout_s=WAIT_S) as fourth:
            _begin(fourth, 3)
        _begin(first, 3)


def test_first_message_must_open() -> None:
    """A step without it is refused, and so is a name that is none."""
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC))
        channel = stack.enter_context(open_channel(service.address))
        stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
        named = pack_open(Declared("x", _SPEC))
        named.open.client = "../x"
        for message, reason in ((pb.PlayRequest(step=pb.Step()), "open"), (named, "open.client '../x'")):
            with pytest.raises(InvalidArgument, match=naming(reason)), translated():
                next(stub.Play(iter([message])))


def test_opening_beyond_what_an_environment_has_is_refused() -> None:
    """By the number of its entries, or of its bytes where that is too large; nothing is made of them before."""
    long = [1] * 65
    openings = (
        (pb.Open(client="x", observation=[pb.Space()] * 4097), "open.observation 4097 4096"),
        (pb.Open(client="x", observation=[pb.Space(), pb.Space(shape=long)]), "open.observation[1].shape 65 64"),
        (pb.Open(client="x", action=pb.ActionSpace(action_sizes=[1] * 4097)), "open.action.action_sizes 4097 4096"),
        (pb.Open(client="x", action=pb.ActionSpace(action_shape=long)), "open.action.action_shape 65 64"),
        (pb.Open(client="x", observation=[pb.Space()] * 2**16), "Play 65536"),
    )
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC))
        stub = simulator_pb2_grpc.SimulatorServiceStub(stack.enter_context(open_channel(service.address)))
        for message, reason in openings:
            with pytest.raises(InvalidArgument, match=naming(reason)), translated():
                next(stub.Play(iter([pb.PlayRequest(open=message)]), timeout=WAIT_S))


def test_call_without_a_first_message_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no place for longer than `open` may take, and is told why it ended."""
    monkeypatch.setattr(open_calls, "OPEN_TIMEOUT_S", 0.1)
    has_ended = threading.Event()

    def silence() -> Iterator[pb.PlayRequest]:
        has_ended.wait(WAIT_S)
        yield from ()

    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC))
        stub = simulator_pb2_grpc.SimulatorServiceStub(stack.enter_context(open_channel(service.address)))
        stack.callback(has_ended.set)
        with pytest.raises(Unavailable, match=naming("0.1 s"), check=because(Reason.CALLER_SILENT)), translated():
            next(stub.Play(silence(), timeout=WAIT_S))


def test_client_names_what_it_cannot_take() -> None:
    """Wrong arguments and wrong steps are refused without a service; the episode can continue."""
    with pytest.raises(InvalidArgument, match=naming("address 'nowhere'")):
        SimulatorClient("nowhere", _SPEC)
    with pytest.raises(TypeError, match=naming("spec dict EnvSpec tidemill.declared_spec")):
        SimulatorClient("127.0.0.1:1", {"observation": ["float32", 2], "num_actions": 2})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=naming("observation_dtype name 'float32'")):
        EnvSpec((2,), np.float32, num_actions=2)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=naming("timeout_s -1.0 0")):
        SimulatorClient("127.0.0.1:1", _SPEC, timeout_s=-1.0)
    with pytest.raises(InvalidArgument, match=naming("name 'a b'")):
        SimulatorClient("127.0.0.1:1", _SPEC, name="a b")
    with local_server() as replay:
        create_table(replay.address, _DQN, _SPEC)
        with (
            local_simulators(replay.address, _DQN, _SPEC) as service,
            SimulatorClient(service.address, _SPEC) as client,
        ):
            client.begin(np.zeros(2, np.float32))
            for reward in (None, "much"):
                with pytest.raises(InvalidArgument, match=naming("reward finite", repr(reward))):
                    client.step(np.zeros(2, np.float32), reward)  # type: ignore[arg-type]
            for action in (1.5, "left", float("nan"), float("inf")):
                with pytest.raises(InvalidArgument, match=naming("action whole numbers", repr(action))):
                    client.step(np.zeros(2, np.float32), 1.0, action=action)
            for whole in (True, 1.0, np.round(np.float32(0.9))):
                assert client.step(np.zeros(2, np.float32), 1.0, action=whole) == 1


def test_no_service_is_told_after_the_timeout() -> None:
    """With the address."""
    address = free_address()
    with SimulatorClient(address, _SPEC, timeout_s=0.0) as client, pytest.raises(Unavailable, match=naming(address)):
        client.begin(np.zeros(2, np.float32))


def test_client_at_a_wrong_port_says_so_and_goes_on_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning names the address and the time; the error tells the refused connection and what to do."""
    told: list[str] = []
    monkeypatch.setattr(client_module, "_SILENT_S", 0.2)
    monkeypatch.setattr(client_module._log, "warning", lambda event, **fields: told.append(f"{event} {fields}"))
    address = free_address()
    with (
        SimulatorClient(address, _SPEC, timeout_s=3.0) as client,
        pytest.raises(Unavailable, match=naming(address, 3, "(timeout_s) simulators: HOST:PORT")) as failed,
    ):
        client.begin(np.zeros(2, np.float32))
    assert "refused" in str(failed.value)
    (warning,) = told
    assert warning.startswith(f"nothing answers at {address}; trying again for up to 3 s (timeout_s)")
    assert "refused" in warning


def test_client_whose_run_has_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has played in the run, so its address is right; one more attempt has its own warning."""
    told: list[str] = []
    monkeypatch.setattr(client_module, "_SILENT_S", 0.0)
    monkeypatch.setattr(client_module._log, "warning", lambda event, **fields: told.append(event))
    with local_server() as replay, ExitStack() as stack:
        create_table(replay.address, _DQN, _SPEC)
        service = stack.enter_context(local_simulators(replay.address, _DQN, _SPEC))
        client = SimulatorClient(service.address, _SPEC, timeout_s=0.5)
        client.begin(np.zeros(2, np.float32))
        stack.close()
        for _ in range(2):
            with pytest.raises(Unavailable, match="run 'test' has ended"):
                client.begin(np.zeros(2, np.float32))
        client.close()
    assert len(told) == 2
