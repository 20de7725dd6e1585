"""A recorded update is the eager update: on the CPU by its operations, and on a GPU."""

from __future__ import annotations

import copy
import dataclasses
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from tests.support.batches import CONTINUOUS, DISTINCT_CASES, VECTOR, WithIdleRank, sampled_batch
from tests.support.naming import naming
from tests.support.recorded_operations import OperationRecorder
from tidemill.config.services import LauncherSettings, LearnerSettings
from tidemill.errors import ConfigError, Unavailable
from tidemill.rl import train_state
from tidemill.rl.agents import update_graph
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.capture_trial import _record, can_record, with_chosen_compile
from tidemill.rl.agents.interface import Agent, Update
from tidemill.rl.agents.update_graph import RecordedUpdates
from tidemill.rl.networks.layers.batch_renorm import BATCH_NORM, RENORM
from tidemill.rl.settings.deterministic import TD3Config
from tidemill.rl.settings.on_policy import PQNConfig
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.rl.train_state import TrainState
from tidemill.types import EnvSpec

UPDATES = 30
"""So that each kind is recorded and repeated: every fifth is measured here, and copies are at most ten apart."""
BATCH = 6
RECORDABLE = {name: case for name, case in DISTINCT_CASES.items() if can_record(case[0])} | {
    "td3_delayed": (TD3Config(hidden_sizes=(16,), policy_delay=3), CONTINUOUS),
    "sac_crossq_after_warm_up": (
        SACConfig(hidden_sizes=(16,), crossq=True, crossq_warmup_updates=8, policy_delay=2),
        CONTINUOUS,
    ),
    "pqn_falling": (
        PQNConfig(hidden_sizes=(16, 16), unroll=5, epochs=2, minibatches=3, learning_rate_decay_updates=1_000),
        VECTOR,
    ),
}
every_recordable = pytest.mark.parametrize("name", RECORDABLE)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> OperationRecorder:
    """What agents that are built in a test record by, with a measured update in every five."""
    made = OperationRecorder()
    monkeypatch.setattr(update_graph, "recorder_on", lambda device, noise: made)
    monkeypatch.setattr(train_state, "MEASURE_PERIOD", 5)
    return made


def recording(config: AgentConfig) -> AgentConfig:
    """Return settings with recorded updates."""
    changed: AgentConfig = dataclasses.replace(config, compile="cuda-graphs")  # type: ignore[type-var]
    return changed


def pair(name: str, device: str = "cpu") -> tuple[Agent, Agent]:
    """Return a case's agents: one that makes its updates as they are, and one that records them."""
    config, env_spec = RECORDABLE[name]
    return build_agent(config, env_spec, device, 1), build_agent(recording(config), env_spec, device, 1)


def batch_of(
    agent: Agent, config: AgentConfig, env_spec: EnvSpec, number: int, items: int = BATCH
) -> dict[str, Tensor]:
    """Return the batch of an update."""
    return sampled_batch(agent, config, env_spec, items, torch.Generator().manual_seed(number))


def updated(agent: Agent, name: str, numbers: range, device: str = "cpu") -> list[Update]:
    """Make the updates of these numbers, each with another batch and other weights; return what they reported."""
    config, env_spec = RECORDABLE[name]
    reports = []
    for number in numbers:
        batch = {key: tensor.to(device) for key, tensor in batch_of(agent, config, env_spec, number).items()}
        weight = torch.rand(BATCH, generator=torch.Generator().manual_seed(number)).to(device)
        reports.append(agent.update(batch, weight))
    return reports


def assert_same(name: str, left: object, right: object) -> None:
    """Compare bit for bit; a step size or a clip that falls is float32 on a device and float64 in Python."""
    settings = RECORDABLE[name][0]
    falls = any(getattr(settings, f"{each}_decay_updates", 0) for each in ("learning_rate", "clip"))
    tolerance = 1e-4 if falls else 0.0
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance / 10)


@every_recordable
def test_repeated_operations_are_the_eager_update(name: str, recorder: OperationRecorder) -> None:
    """Whatever the algorithm decides in Python is in the kind, and whatever it reads is in its batch or its state."""
    eager, fast = pair(name)
    expected, found = updated(eager, name, range(UPDATES)), updated(fast, name, range(UPDATES))
    assert_same(name, [tuple(each) for each in found], [tuple(each) for each in expected])
    assert_same(name, fast.state_dict(), eager.state_dict())
    assert recorder.recordings >= 1
    assert recorder.repeats >= UPDATES // 3


@pytest.mark.parametrize("name", ["sac", "dqn_rainbow", "d4pg"])
def test_state_that_is_loaded_is_what_recordings_go_on_with(name: str, recorder: OperationRecorder) -> None:
    """Half of the updates, then an earlier state: the rest is what an eager agent makes of it."""
    eager, fast = pair(name)
    for agent in (eager, fast):
        updated(agent, name, range(4))
        early = copy.deepcopy(agent.state_dict())
        updated(agent, name, range(4, 15))
        agent.load_state_dict(early)
    recorded_before = recorder.repeats
    expected, found = updated(eager, name, range(20, 32)), updated(fast, name, range(20, 32))
    assert_same(name, [tuple(each) for each in found], [tuple(each) for each in expected])
    assert recorder.repeats > recorded_before


@pytest.mark.parametrize("name", ["sac", "sac_lstm", "dqn", "r2d2"])
def test_batch_of_other_shapes_is_made_as_it_is(name: str, recorder: OperationRecorder) -> None:
    """And the next one of the usual shapes by the recording again."""
    eager, fast = pair(name)
    config, env_spec = RECORDABLE[name]
    for agent in (eager, fast):
        updated(agent, name, range(8))
        repeats = recorder.repeats
        larger = batch_of(agent, config, env_spec, 9, items=BATCH + 1)
        agent.update(larger, torch.ones(BATCH + 1))
        assert recorder.repeats == repeats
        updated(agent, name, range(9, 12))
    assert recorder.repeats > repeats
    assert_same(name, fast.state_dict(), eager.state_dict())


@every_recordable
def test_rank_repeats_its_parts_and_exchanges_gradients_between_them(name: str, recorder: OperationRecorder) -> None:
    """Every gradient is averaged as often as in eager updates, none of it inside of a recording."""
    eager, fast = pair(name)
    groups = WithIdleRank(), WithIdleRank()
    eager.set_process_group(groups[0])
    fast.set_process_group(groups[1])
    expected, found = updated(eager, name, range(UPDATES)), updated(fast, name, range(UPDATES))
    assert_same(name, [tuple(each) for each in found], [tuple(each) for each in expected])
    assert_same(name, fast.state_dict(), eager.state_dict())
    assert groups[1].means == groups[0].means >= UPDATES
    assert recorder.repeats >= 2 * (UPDATES // 3)


def test_error_in_an_exchange_leaves_the_ranks_group_in_place(recorder: OperationRecorder) -> None:
    """The error passes through, and the agent still averages with the other ranks."""

    class Lost(WithIdleRank):
        def add_up(self, flat: Tensor) -> None:
            super().add_up(flat)
            if self.means == 3:  # the first one of a recording
                raise Unavailable("the others are gone")

    _, fast = pair("dqn")
    group = Lost()
    fast.set_process_group(group)
    updated(fast, "dqn", range(2))
    with pytest.raises(Unavailable, match="the others are gone"):
        updated(fast, "dqn", range(2, 3))
    updated(fast, "dqn", range(3, 6))
    assert group.means == 6


def test_without_a_gpu_updates_are_made_as_they_are() -> None:
    """And the log says so when the agent is built."""
    with capture_logs() as logs:
        eager, fast = pair("dqn")
    assert re.search(naming("agent.compile cuda-graphs GPU"), logs[0]["event"])
    updated(eager, "dqn", range(3))
    updated(fast, "dqn", range(3))
    assert_same("dqn", fast.state_dict(), eager.state_dict())


def test_what_an_update_decides_by_itself_is_repeated_as_it_was() -> None:
    """What the tests above would find: a number that changes in Python and is not in the kind."""
    state, total = TrainState({}, {}), torch.zeros(())

    def add_count(batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        total.add_(float(state.updates))
        return Update(weight.clone(), {"total": total})

    run = RecordedUpdates(add_count, state, OperationRecorder())
    reported = []
    for _ in range(6):
        reported.append(float(run({}, torch.ones(1), kind=0).metrics["total"]))
        state.updates += 1
    assert reported == [0.0, 1.0, 3.0, 5.0, 7.0, 9.0]  # not 0, 1, 3, 6, 10, 15


class Centred(torch.nn.Module):
    """A torso that keeps a running mean, in its place or in another tensor each time."""

    mean: Tensor

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator, in_place: bool) -> None:
        super().__init__()
        self.outputs = env_spec.observation_shape[0]
        self.in_place = in_place
        self.register_buffer("mean", torch.zeros(self.outputs))

    def forward(self, observation: Tensor) -> Tensor:
        """Return the observation less the mean."""
        if self.training and self.in_place:
            self.mean.mul_(0.9).add_(0.1 * observation.detach().mean(0))
        elif self.training:
            self.mean = 0.9 * self.mean + 0.1 * observation.detach().mean(0)
        return observation - self.mean


def _centred(*, in_place: bool) -> AgentConfig:
    return SACConfig(network=f"{__name__}:Centred", network_settings={"in_place": in_place}, hidden_sizes=(16,))


def test_buffer_that_is_replaced_is_not_recorded(recorder: OperationRecorder) -> None:
    """Repetitions would read the tensor that was there at the recording, and the statistics stand still."""
    config = recording(_centred(in_place=False))
    agent = build_agent(config, CONTINUOUS, seed=1)
    batch, weight = batch_of(agent, config, CONTINUOUS, 0), torch.ones(BATCH)
    for _ in range(3):  # the first is measured; of the usual kind two are made as they are
        agent.update(batch, weight)
    with pytest.raises(RuntimeError, match=naming("another tensor in place of actor.torso.mean copy_")):
        agent.update(batch, weight)


def test_buffer_that_is_changed_in_place_is_recorded(recorder: OperationRecorder) -> None:
    """Its statistics are those of eager updates."""
    config = _centred(in_place=True)
    eager, fast = (build_agent(each, CONTINUOUS, seed=1) for each in (config, recording(config)))
    for number in range(UPDATES):
        batch = batch_of(eager, config, CONTINUOUS, number)
        for agent in (eager, fast):
            agent.update(batch, torch.ones(BATCH))
    torch.testing.assert_close(fast.state_dict(), eager.state_dict(), rtol=0.0, atol=0.0)
    assert recorder.repeats >= UPDATES // 3


_BOTH = (False, True)
_CROSSQ = [(moves, bounds, measured) for moves in _BOTH for bounds in (BATCH_NORM, RENORM) for measured in _BOTH]


@pytest.mark.parametrize(
    "name, kinds",
    [
        ("dqn", _BOTH),
        ("ppo", [None]),
        ("sac", [(True, None, measured) for measured in _BOTH]),
        ("sac_crossq", _CROSSQ),
        ("td3_delayed", [(moves, True, measured) for moves in _BOTH for measured in _BOTH]),
        ("d4pg", [(True, copies, measured) for copies in _BOTH for measured in _BOTH]),
    ],
)
def test_trial_repeats_every_kind_of_update(
    name: str, kinds: Sequence[Hashable], recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those as well that are rare in a run: what cannot be recorded is found before it begins."""
    made, call = Counter[Hashable](), RecordedUpdates.__call__

    def counted(updates: RecordedUpdates, batch: Mapping[str, Tensor], weight: Tensor, kind: Hashable) -> Update:
        made[kind] += 1
        return call(updates, batch, weight, kind)

    monkeypatch.setattr(RecordedUpdates, "__call__", counted)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    config, env_spec = RECORDABLE[name]
    _record(config, env_spec, "cpu", BATCH)
    assert set(made) == set(kinds)
    assert min(made.values()) >= 4
    assert recorder.recordings == len(kinds)


def test_trial_that_hangs_leaves_a_learner_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends well before the launcher, or the other learners, give up. The log says that it is being waited for."""
    limits_s: list[float] = []

    def hang(command: Sequence[str], *, timeout: float, **_: object) -> None:
        limits_s.append(timeout)
        raise subprocess.TimeoutExpired("trial", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with capture_logs() as logs:
        chosen = with_chosen_compile(SACConfig(), CONTINUOUS, torch.device("cuda", 0), BATCH)
    assert getattr(chosen, "compile") == "none"  # noqa: B009 - of the settings of any algorithm
    assert [(line["log_level"], line.get("timeout_s")) for line in logs] == [("info", limits_s[0]), ("warning", None)]
    assert 2 * limits_s[0] <= min(LauncherSettings().start_timeout_s, LearnerSettings().ranks_timeout_s)


@pytest.mark.parametrize("config", [SACConfig, TD3Config])
def test_no_other_way_to_compile_is_offered(config: Callable[..., AgentConfig]) -> None:
    """The message lists those there are."""
    with pytest.raises(ConfigError, match=naming("compile 'default' auto none")):
        config(compile="default")


@pytest.mark.requires_cuda  # CUDA graphs are recorded nowhere else
@every_recordable
def test_recorded_updates_on_a_gpu_equal_eager_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reported, the parameters, and how far the generator is.

    A GPU adds up in any order, so that two runs of the same updates drift apart: on an H100 the gradients of two eager
    runs of BTR differ by 0.8 % after 26 updates, and those of all others by less than 0.1 %.
    """
    repeats, replay = list[torch.cuda.CUDAGraph](), torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        repeats.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    monkeypatch.setattr(train_state, "MEASURE_PERIOD", 5)
    eager, fast = pair(name, "cuda")
    expected = updated(eager, name, range(UPDATES), "cuda")
    assert repeats == []
    found = updated(fast, name, range(UPDATES), "cuda")
    assert len(repeats) >= UPDATES // 3
    rtol, atol = (3e-2, 1e-3) if name == "dqn_btr" else (1e-3, 1e-4)
    reported = [tuple(each) for each in found], [tuple(each) for each in expected]
    torch.testing.assert_close(*reported, rtol=rtol, atol=atol)
    torch.testing.assert_close(fast.policy_state(), eager.policy_state(), rtol=rtol, atol=atol)
    left, right = fast.state_dict(), eager.state_dict()
    assert ("noise" in left) == ("noise" in right)
    if "noise" in left:
        assert torch.equal(left["noise"], right["noise"])
