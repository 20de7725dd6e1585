"""Acting by an inference service: equal to acting by the own network, and what happens when the service is lost."""

from __future__ import annotations

import copy
import re
import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from tests.support.batches import CASES, DISTINCT_CASES, VECTOR
from tests.support.free_ports import free_address
from tests.support.inference_service import FixedParams, Played, local_inference, state_of
from tests.support.naming import because, naming
from tests.support.waiting import WAIT_S, wait_until
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, ResourceExhausted
from tidemill.inference.client import InferenceClient
from tidemill.inference.v1 import inference_pb2 as pb
from tidemill.inference.v1 import inference_pb2_grpc
from tidemill.inference.wire import Opening, pack_open
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import Policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyOutput
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rpc.channel import open_channel
from tidemill.rpc.status import translated
from tidemill.services.actor.acting.loop import ActingLoop, ActingStopped, PolicyParams
from tidemill.services.actor.acting.metrics import ActorMetrics
from tidemill.services.actor.acting.remote_policy import RemotePolicy
from tidemill.types import EnvSpec

_ENVS = 3
_SLOT = ActorSlot(1, _ENVS, 2)
_DQN = DQNConfig(network="mlp", hidden_sizes=(16,), ladder_base=0.7)


def _equal(mine: PolicyOutput, theirs: PolicyOutput) -> bool:
    assert mine.priority_inputs.keys() == theirs.priority_inputs.keys()
    assert mine.extras.keys() == theirs.extras.keys()
    pairs: list[tuple[Any, Any]] = [(mine.action, theirs.action), (mine.recurrent_state, theirs.recurrent_state)]
    pairs += [(mine.priority_inputs[name], theirs.priority_inputs[name]) for name in mine.priority_inputs]
    pairs += [(mine.extras[name], theirs.extras[name]) for name in mine.extras]
    return all(np.array_equal(a, b) if a is not None else b is None for a, b in pairs)


def _remote(
    config: AgentConfig, spec: EnvSpec, *addresses: str, seed: int = 5, fallback: FixedParams | None = None
) -> tuple[RemotePolicy, InferenceClient, threading.Event]:
    policy, stop = build_policy(config, spec, seed=seed, slot=_SLOT), threading.Event()
    opening = Opening(config.algorithm, _ENVS, spec, policy.recurrent_state_size, noise_seed=seed)
    client = InferenceClient(addresses, opening)
    watcher: Any = fallback
    own = None if fallback is None else PolicyParams(watcher, policy)
    if own is not None:
        assert own.wait(stop)
    return RemotePolicy(policy, client, stop, own), client, stop


def _local(config: AgentConfig, spec: EnvSpec, state: dict[str, torch.Tensor], seed: int = 5) -> Policy:
    policy = build_policy(config, spec, seed=seed, slot=_SLOT)
    policy.load(state)
    return policy


def _compare(mine: Policy, theirs: Policy, spec: EnvSpec, steps: int, env_steps: int, seed: int = 3) -> None:
    own, other = (Played(spec, _ENVS, policy.recurrent_state_size, seed) for policy in (mine, theirs))
    for _ in range(steps):
        a, b = mine.act(own.next(), env_steps), theirs.act(other.next(), env_steps)
        own.builder.record(a)
        other.builder.record(b)
        assert _equal(a, b)


@pytest.mark.parametrize("name", DISTINCT_CASES)
def test_acting_by_the_service_equals_acting_by_the_own_network(name: str) -> None:
    """Actions and all that items store are equal to the last bit, for every algorithm, before and after its start."""
    config, spec = CASES[name]
    state, params = state_of(config, spec), FixedParams()
    params.set(state)
    with local_inference(config, spec, params) as service:
        remote, client, stop = _remote(config, spec, service.address)
        with closing(client):
            _compare(remote, _local(config, spec, state), spec, steps=8, env_steps=1_000_000)
        stop.set()


def test_actors_are_batched_and_get_their_own_rows() -> None:
    """Three actors that wait for the first parameters then share every pass, and act as each would by itself."""
    state, params, seeds = state_of(_DQN, VECTOR), FixedParams(), (5, 6, 7)
    equal: dict[int, list[bool]] = {seed: [] for seed in seeds}
    with local_inference(_DQN, VECTOR, params, max_wait_s=WAIT_S) as service:

        def play(seed: int) -> None:
            remote, client, _ = _remote(_DQN, VECTOR, service.address, seed=seed)
            local = _local(_DQN, VECTOR, state, seed)
            played, own = Played(VECTOR, _ENVS, 0, seed), Played(VECTOR, _ENVS, 0, seed)
            with closing(client):
                for _ in range(10):
                    a, b = remote.act(played.next()), local.act(own.next())
                    equal[seed].append(np.array_equal(a.action, b.action))

        threads = [threading.Thread(target=play, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        wait_until(lambda: service.metric("actors") == 3, "all are connected")
        params.set(state)
        for thread in threads:
            thread.join(WAIT_S)
        assert service.metric("batches_total", cause="complete") == service.metric("batch_rows_count") == 10
        assert service.metric("env_steps_total") == 10 * 3 * _ENVS
    assert equal == {seed: [True] * 10 for seed in seeds}


@pytest.mark.parametrize("name", ["r2d2", "impala_lstm", "sac_lstm", "td3_lstm", "dqn_image"])
def test_waiting_actor_goes_on_exactly_where_it_was(name: str) -> None:
    """A service that is lost and comes again is sent stacks and recurrent states: the actions stay equal."""
    config, spec = CASES[name]
    state, params = state_of(config, spec), FixedParams()
    params.set(state)
    address = free_address()
    local = _local(config, spec, state)
    played, other = Played(spec, _ENVS, local.recurrent_state_size), Played(spec, _ENVS, local.recurrent_state_size)
    remote, client, _ = _remote(config, spec, address)
    with closing(client):
        for _ in range(2):
            with local_inference(config, spec, params, address=address):
                for _ in range(5):
                    a, b = remote.act(played.next()), local.act(other.next())
                    played.builder.record(a)
                    other.builder.record(b)
                    assert _equal(a, b)


def test_lost_replica_is_replaced_by_the_next() -> None:
    """An actor that knows two addresses continues with the other one."""
    state, params = state_of(_DQN, VECTOR), FixedParams()
    params.set(state)
    with local_inference(_DQN, VECTOR, params) as second:
        with local_inference(_DQN, VECTOR, params) as first:
            remote, client, _ = _remote(_DQN, VECTOR, first.address, second.address)
            played = Played(VECTOR, _ENVS, 0)
            remote.act(played.next())
            assert client.address == first.address
        with closing(client):
            remote.act(played.next())
            assert client.address == second.address


def test_actor_falls_back_to_its_own_network_and_returns() -> None:
    """While there is no service it acts by its own parameters, and once there is one by the service's."""
    config, spec = CASES["r2d2"]
    state, own, params = state_of(config, spec), FixedParams(), FixedParams()
    own.set(state, number=4)
    params.set(state, number=9)
    address = free_address()
    remote, client, _ = _remote(config, spec, address, fallback=own)
    local = _local(config, spec, state)
    size = local.recurrent_state_size
    played, other = Played(spec, _ENVS, size), Played(spec, _ENVS, size)

    def step() -> int:
        a, b = remote.act(played.next()), local.act(other.next())
        played.builder.record(a)
        other.builder.record(b)
        assert _equal(a, b)
        return remote.version

    with closing(client):
        assert [step() for _ in range(3)] == [4, 4, 4]
        with local_inference(config, spec, params, address=address):
            wait_until(lambda: step() == 9, "the service acts")
            assert step() == 9
        assert step() == 4


def test_actor_that_waits_is_stopped() -> None:
    """`stop` ends the wait for a service that is not there, and for parameters that do not come."""
    with local_inference(_DQN, VECTOR, FixedParams()) as service:
        for address in (free_address(), service.address):
            remote, client, stop = _remote(_DQN, VECTOR, address)
            threading.Timer(0.2, stop.set).start()
            with closing(client), pytest.raises(ActingStopped):
                remote.act(Played(VECTOR, _ENVS, 0).next())


@pytest.mark.parametrize("number, env_steps", [(2, 70), (1, 0)], ids=["newer", "of another run"])
def test_newer_parameters_are_taken_with_their_version_and_counters(number: int, env_steps: int) -> None:
    """The answer says which version acted, and after how many steps of the cluster it was published."""
    first, second, params = state_of(_DQN, VECTOR, 1), state_of(_DQN, VECTOR, 2), FixedParams()
    params.set(first, number=1, env_steps=50)
    with local_inference(_DQN, VECTOR, params) as service:
        remote, client, _ = _remote(_DQN, VECTOR, service.address)
        with closing(client):
            played = Played(VECTOR, _ENVS, 0)
            remote.act(played.next())
            assert (remote.version, remote.env_steps) == (1, 50)
            params.set(second, number=number, env_steps=env_steps)
            remote.act(played.next())
            assert (remote.version, remote.env_steps) == (number, env_steps)


def test_another_run_s_actor_is_refused_and_told_why() -> None:
    """The message names what differs; so does that of an actor with more environments than a batch has room for."""
    params = FixedParams()
    params.set(state_of(_DQN, VECTOR))
    with local_inference(_DQN, VECTOR, params, max_batch=4) as service:
        for algorithm, count, kind, message, reason in (
            ("r2d2", 2, FailedPrecondition, "algorithm 'r2d2' 'dqn'", Reason.RUN_DIFFERS),
            ("dqn", 5, InvalidArgument, "num_envs 5 1 inference.max_batch 4", None),
        ):
            client = InferenceClient([service.address], Opening(algorithm, count, VECTOR))
            with closing(client), pytest.raises(kind, match=naming(message), check=because(reason)):
                client.ask(Played(VECTOR, count, 0).next())


def test_more_actors_than_allowed_are_refused_until_one_leaves() -> None:
    """The refused one may ask again."""
    params = FixedParams()
    params.set(state_of(_DQN, VECTOR))
    opening = Opening("dqn", _ENVS, VECTOR)
    with local_inference(_DQN, VECTOR, params, max_streams=1) as service:
        first, second = InferenceClient([service.address], opening), InferenceClient([service.address], opening)
        played = Played(VECTOR, _ENVS, 0)
        with closing(second):
            with closing(first):
                first.ask(played.next())
                with pytest.raises(
                    ResourceExhausted, match=r"inference\.max_streams", check=because(Reason.TOO_MANY_CALLS)
                ):
                    second.ask(played.next())
            wait_until(lambda: service.metric("actors") == 0, "the first has left")
            second.ask(played.next())


def test_actor_says_that_the_service_is_full_also_after_it_was_lost() -> None:
    """Each once, however often it asks, and which setting to raise."""
    own, params, played = FixedParams(), FixedParams(), Played(VECTOR, _ENVS, 0)
    for each in (own, params):
        each.set(state_of(_DQN, VECTOR))
    with local_inference(_DQN, VECTOR, params, max_streams=1) as service, capture_logs() as logs:
        first = InferenceClient([service.address], Opening("dqn", _ENVS, VECTOR))
        remote, client, _ = _remote(_DQN, VECTOR, free_address(), service.address, fallback=own)
        with closing(first), closing(client):
            first.ask(played.next())

            def warnings() -> list[str]:
                remote.act(played.next())
                return [line["event"] for line in logs if line["event"].startswith("inference service")]

            wait_until(lambda: len(warnings()) == 2, "the full service has refused the actor")
            lost, full = warnings()
    assert "lost" in lost
    assert re.search(naming("full inference.max_streams"), full)


def test_malformed_messages_end_their_own_call_alone() -> None:
    """Each is answered INVALID_ARGUMENT with what is wrong; an actor that is connected continues."""
    params = FixedParams()
    params.set(state_of(_DQN, VECTOR))
    opening = pack_open(Opening("dqn", _ENVS, VECTOR))
    short = pb.ActRequest(step=pb.ActStep(newest=b"x" * 7, is_first=b"\0" * _ENVS))
    cases = (([short], "open"), ([opening, short], "7"), ([opening, opening], "steps"))
    with local_inference(_DQN, VECTOR, params, max_wait_s=0.01) as service:
        client = InferenceClient([service.address], Opening("dqn", _ENVS, VECTOR))
        played = Played(VECTOR, _ENVS, 0)
        with closing(client), open_channel(service.address) as channel:
            client.ask(played.next())
            for messages, reason in cases:
                with pytest.raises(InvalidArgument, match=naming(reason)), translated():
                    list(inference_pb2_grpc.InferenceServiceStub(channel).Act(iter(messages), timeout=WAIT_S))
            client.ask(played.next())


class _Writer:
    """Keeps all that the loop gives a writer, and stops it after some rows."""

    env_steps = 0

    def __init__(self, stop: threading.Event) -> None:
        self.stored: list[Any] = []
        self._stop = stop

    def append(self, *stored: object, **beside: object) -> None:
        """Keep copies: the loop's arrays may change."""
        self.stored.append(copy.deepcopy((stored, beside)))
        if len(self.stored) == 30:
            self._stop.set()

    def push(self) -> None:
        """Do nothing."""


def test_loop_stores_the_same_items_by_the_service() -> None:
    """Rows, priority inputs, final observation steps, version and recurrent state, of a masked environment."""
    config = R2D2Config(network="mlp", hidden_sizes=(8,), lstm_size=4, head_sizes=(8,), exploration="schedule")
    stored: list[list[Any]] = []
    for is_remote in (False, True):
        env = make_env(EnvSettings("tests.support.envs:masked", action_mask="info.action_mask"), _ENVS, training=True)
        params = FixedParams()
        params.set(state_of(config, env.spec), number=3, env_steps=100)
        with closing(env), local_inference(config, env.spec, params) as service:
            remote, client, stop = _remote(config, env.spec, service.address)
            watcher: Any = params
            own = build_policy(config, env.spec, seed=5, slot=_SLOT)
            local = PolicyParams(watcher, own)
            writer: Any = _Writer(stop)
            acting: tuple[Any, Any] = (remote, remote) if is_remote else (own, local)
            with closing(client):
                ActingLoop(env, *acting, writer, ActorMetrics(1e9), lambda: None).run(0, stop)
        stored.append(writer.stored)
    assert len(stored[0]) == 30
    np.testing.assert_equal(stored[1], stored[0])
