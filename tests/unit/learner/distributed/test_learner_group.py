"""Which of the ranks a process is, and the training loop of one of several."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from torch import Tensor

from tests.support.clock import Clock
from tests.support.learner_fakes import FakeAgent, FakePriorities, FakePublisher, FakeSource, batch
from tests.support.naming import naming
from tidemill.config.load import from_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import LearnerConfig
from tidemill.config.services import LearnerSettings
from tidemill.config.sources import SourceSettings
from tidemill.envs.make import spec_of
from tidemill.errors import ConfigError, Unavailable
from tidemill.rl.agents.interface import Agent, Update
from tidemill.rl.process_group import SINGLE_PROCESS, draw_normal, draw_uniform
from tidemill.rl.settings.on_policy import PPOConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.services.learner import learner
from tidemill.services.learner.data.decoder import Batch
from tidemill.services.learner.data.device import DeviceBacklog, resolve_device
from tidemill.services.learner.distributed.learner_group import RankInfo, SingleLearner, StepVote, joined_group
from tidemill.services.learner.learner import Learner, join, learning_agent
from tidemill.services.learner.status.control import Control
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.divergence import Diverged
from tidemill.services.learner.status.progress import Progress
from tidemill.services.learner.training.pace import Learning
from tidemill.services.learner.training.trainer import Limits, Trainer, TrainerOutputs


class _Others(SingleLearner):
    """A rank of two whose other one says what the test lays down, once a word; then it has nothing to say."""

    size = 2

    def __init__(self, *words: StepVote) -> None:
        self._words, self.heard = list(words), []  # type: ignore[var-annotated]

    def all_agree(self, word: StepVote) -> StepVote:
        """Return the expectation for either."""
        self.heard.append(word)
        other = self._words.pop(0) if self._words else _NOTHING
        largest = max(word.largest_weight, other.largest_weight)
        lacks_batch = word.lacks_batch or other.lacks_batch
        is_over, at_limit = word.is_over or other.is_over, word.at_limit or other.at_limit
        return StepVote(word.stop or other.stop, word.pause or other.pause, lacks_batch, largest, is_over, at_limit)


_NOTHING = StepVote(stop=False, pause=False, lacks_batch=False, largest_weight=0.0)
_LACKS = _NOTHING._replace(lacks_batch=True)


class _Agent(FakeAgent):
    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def update(self, batch: dict[str, Tensor], weight: Tensor) -> Update:  # type: ignore[override]
        self.weights.append(weight)
        return super().update(batch, weight)


def _batch(largest_weight: float = 1.0) -> Batch:
    return batch(0, 1, weight=torch.tensor([1.0, 0.5]), largest_weight=largest_weight)


def _trainer(
    ranks: _Others,
    agent: FakeAgent,
    batches: list[Batch],
    steps: int,
    control: Control | None = None,
    clock: Clock | None = None,
    publisher: FakePublisher | None = None,
) -> Trainer:
    counters, clock = Counters(), clock or Clock()
    progress = Progress(counters, log_every_s=1e9, clock=clock)
    outputs, limits = TrainerOutputs(FakePriorities(), publisher, group=ranks), Limits(steps, publish_every=1)
    control = control or Control(threading.Event())
    return Trainer(agent, FakeSource(*batches), outputs, control, counters, progress, limits, clock)


def test_no_step_is_taken_while_another_rank_lacks_a_batch() -> None:
    """The batch at hand is kept: after two vain words two steps use two batches."""
    ranks, agent = _Others(_LACKS, _LACKS), FakeAgent()
    assert _trainer(ranks, agent, [_batch(), _batch()], 2).run() == "run.max_learner_steps (2) reached"
    assert len(agent.batches) == 2
    assert [word.lacks_batch for word in ranks.heard] == [False, False, False, False, True]  # the last one stops
    assert ranks.heard[-1].stop


def test_policy_lag_leaves_out_the_version_of_the_update_itself() -> None:
    """Which may be acknowledged while the ranks vote on the next; that has no item of a version."""
    agent = FakeAgent()
    publisher = FakePublisher(agent)
    publisher.publish()
    newest = Batch(replace(_batch().replay, first_versions=np.ones(2, np.uint64)))
    trainer = _trainer(_Others(), agent, [newest, _batch()], 2, publisher=publisher)
    trainer.run()
    assert trainer._progress.policy_lag == 0.0


def test_rank_stops_when_another_one_must() -> None:
    """Before its own limit, and without a step."""
    agent = FakeAgent()
    reason = _trainer(_Others(_NOTHING._replace(stop=True)), agent, [_batch()], 5).run()
    assert (reason, agent.batches) == ("another rank stopped", [])


@pytest.mark.parametrize("interface", ["", "eth0"])
@pytest.mark.parametrize("met", ["remote=[127.0.1.1]:15758$0", "Connect timeout [none]"], ids=["refused", "silent"])
def test_machines_that_cannot_connect_are_told_to_name_the_interface(
    met: str, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is named: gloo announces the address of the machine's name, on Debian one that others cannot reach."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if interface:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    failure = Mock(side_effect=RuntimeError(f"Gloo connectFullMesh failed with {met}"))
    monkeypatch.setattr("tidemill.services.learner.distributed.learner_group._join", failure)
    with pytest.raises(Unavailable) as raised, joined_group(RankInfo(1, 2), torch.device("cpu"), 60.0):
        pass
    assert met in str(raised.value)
    assert ("set GLOO_SOCKET_IFNAME" in str(raised.value)) == (not interface)


@pytest.mark.parametrize("asked", [None, "a caller asked"])
def test_signal_to_a_rank_ends_the_run_for_none(asked: str | None) -> None:
    """Both ranks leave, and both know whether the run is over: it is if one was asked to stop besides."""
    signalled = threading.Event()
    signalled.set()
    control = Control(signalled)
    if asked is not None:
        control.stop(asked)
    ranks = _Others()
    trainer = _trainer(ranks, FakeAgent(), [_batch()], 5, control)
    assert trainer.run() == (asked or "a signal asked")
    assert (ranks.heard[-1].stop, ranks.heard[-1].is_over, trainer.is_over) == (True, bool(asked), bool(asked))
    other = _trainer(_Others(ranks.heard[-1]), FakeAgent(), [_batch()], 5)
    assert (other.run(), other.is_over) == ("another rank stopped", bool(asked))


@pytest.mark.parametrize("asked", [None, "a caller asked"])
def test_limit_that_another_rank_has_reached_ends_the_run(asked: str | None) -> None:
    """Each counts agent decisions by its own samples, and the first one, which marks the end, may be behind.

    Where an engine restarts what ends, `Stop` does not end the run.
    """
    control, ranks = Control(threading.Event()), _Others()
    if asked is not None:
        control.stop(asked)
    _trainer(ranks, FakeAgent(), [_batch()], 1, control).run()
    first = _trainer(_Others(_NOTHING, ranks.heard[-1]), FakeAgent(), [_batch(), _batch()], 5)
    assert (first.run(), first.is_over) == ("another rank stopped", True)
    config = LearnerConfig(run=RunSettings(supervisor="engine", max_env_steps=100), agent=SACConfig(batch_size=64))
    learner = Learner(config, threading.Event(), RankInfo(0, 2))
    assert learner._ends_run(first, rolled_back=False) is (asked is None)


def test_rank_pauses_with_the_others() -> None:
    """A word of pause costs no batch."""
    agent = FakeAgent()
    _trainer(_Others(_NOTHING._replace(pause=True)), agent, [_batch()], 1).run()
    assert len(agent.batches) == 1


def test_wait_while_another_rank_is_paused_is_a_pause() -> None:
    """Only the first rank hears a caller; the others wait for its votes, and are paused as it is."""
    clock = Clock()

    class Slow(_Others):
        def all_agree(self, word: StepVote) -> StepVote:
            clock.now_s += 0.2
            return super().all_agree(word)

    def waited() -> list[float]:
        name = "tidemill_learner_wait_seconds_total"
        return [REGISTRY.get_sample_value(name, {"what": what}) or 0.0 for what in ("pause", "ranks")]

    before, paused = waited(), _NOTHING._replace(pause=True)
    _trainer(Slow(*[paused] * 10), FakeAgent(), [_batch()], 1, clock=clock).run()
    assert [now - then for now, then in zip(waited(), before, strict=True)] == pytest.approx([2.0, 0.4])


def test_weights_are_divided_by_the_largest_of_all_ranks() -> None:
    """This batch was divided by 3, another rank's by 12: its weights are 3/12 of what they were; then it is itself."""
    agent = _Agent()
    ranks = _Others(_NOTHING._replace(largest_weight=12.0))
    _trainer(ranks, agent, [_batch(3.0), _batch(3.0)], 2).run()
    assert [weight.tolist() for weight in agent.weights] == [[0.25, 0.125], [1.0, 0.5]]


class _Voting(_Others):
    """A rank of two that notes when its votes are given and agreed on, beside what else is noted."""

    def __init__(self, noted: list[str], *words: StepVote) -> None:
        super().__init__(*words)
        self._noted = noted

    def begin_vote(self, vote: StepVote) -> Callable[[], StepVote]:
        """Note both ends of a vote."""
        self._noted.append("stop" if vote.stop else "vote")

        def agreed() -> StepVote:
            self._noted.append("agreed")
            return self.all_agree(vote)

        return agreed


def test_next_vote_is_given_while_the_device_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after an update was launched, before the host waits for an earlier one."""
    noted: list[str] = []

    class Agent(FakeAgent):
        def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
            noted.append("launched")
            return super().update(batch, weight)

    monkeypatch.setattr(DeviceBacklog, "add", lambda backlog, batch: noted.append("waits"))
    _trainer(_Voting(noted), Agent(), [_batch(), _batch(), _batch()], 3).run()
    ahead = ["launched", "vote", "waits", "agreed"]
    assert noted == ["vote", "agreed", *ahead, *ahead, "launched", "waits", "stop", "agreed"]


def test_rank_that_diverges_makes_the_step_that_it_has_voted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for it in that step; it stops them at the next vote."""
    noted: list[str] = []

    refusals = iter([Diverged("loss nan")])

    def refuse(backlog: DeviceBacklog, batch: object) -> None:
        for refusal in refusals:
            raise refusal

    monkeypatch.setattr(DeviceBacklog, "add", refuse)
    agent = FakeAgent()
    with pytest.raises(Diverged):
        _trainer(_Voting(noted), agent, [_batch(), _batch()], 5).run()
    assert noted == ["vote", "agreed", "vote", "agreed", "stop", "agreed"]
    assert len(agent.batches) == 2


@pytest.mark.parametrize("word", [_LACKS, _NOTHING._replace(pause=True), _NOTHING._replace(stop=True)])
def test_batch_of_a_vote_given_ahead_is_kept(word: StepVote) -> None:
    """Where another rank lacks one, pauses or stops, no step is made of it; later it is."""
    agent = FakeAgent()
    reason = _trainer(_Others(_NOTHING, word), agent, [_batch(), _batch()], 2).run()
    assert len(agent.batches) == (1 if word.stop else 2)
    assert reason == ("another rank stopped" if word.stop else "run.max_learner_steps (2) reached")


def test_updates_are_recorded_by_all_ranks_or_by_none() -> None:
    """A rank that could record its own makes its agent without if another one cannot, and says so."""
    recorded, eager = FakeAgent(), FakeAgent()
    learning = Learning(recorded, Mock(), torch.device("cpu"), Mock(), eager=lambda: eager)
    cannot, ranks = replace(learning, eager=None), _Others(_NOTHING)
    with capture_logs() as logs:
        join(learning, _Others(_NOTHING))
        join(learning, SingleLearner())
        join(cannot, ranks)
    assert learning.agent is cannot.agent is recorded
    assert (logs, ranks.heard[0].lacks_batch) == ([], True)
    with capture_logs() as logs:
        join(learning, _Others(_LACKS))
    assert learning.agent is eager
    assert [line["event"] for line in logs] == [
        "another learner cannot record updates as CUDA graphs; running them without here, too"
    ]


def test_agent_that_records_is_gone_before_the_one_without_is_made() -> None:
    """A GPU may not have room for both, nor for the first one's memory while the second trains."""
    config = from_document(LearnerConfig, {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}})
    make = partial(learning_agent, config, spec_of(config.env), torch.device("cpu"), 32)
    learning = Learning(make(), Mock(), torch.device("cpu"), Mock())
    recorded = weakref.ref(learning.agent)

    def eager() -> Agent:
        assert recorded() is None
        return make()

    learning.eager = eager
    join(learning, _Others(_LACKS))
    assert learning.agent is not None


@pytest.mark.parametrize("machines, end_s", [(1, math.inf), (2, 80.0)])
def test_last_checkpoint_is_given_up_before_another_machine_gives_up_on_the_first_rank(
    machines: int, end_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of `learner.ranks_timeout_s` is left for the last version and the mark of the end."""
    monkeypatch.setattr(learner, "Checkpointer", made := Mock())
    first = RankInfo(0, 2, machines=machines)
    Learner(LearnerConfig(), threading.Event(), first)._checkpointer(Mock(), Mock(), Mock())
    assert made.call_args.kwargs["end_s"] == end_s


def test_place_is_what_torchrun_says() -> None:
    """Without torchrun a process is alone."""
    assert RankInfo.from_env({}) == RankInfo(0, 1, 0)
    place = RankInfo.from_env({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert place == RankInfo(5, 8, 1)
    assert not place.is_first
    assert place.local_batch_size(LearnerConfig(agent=SACConfig(batch_size=64))) == 8


@pytest.mark.parametrize("size, machines, local", [(1, 1, 1), (4, 1, 4), (8, 2, 4), (3, 2, 2)])
def test_ranks_of_a_machine_are_counted_apart(size: int, machines: int, local: int) -> None:
    """A mirror's memory is divided among the ranks that share it, not among those of other machines."""
    environ = {"RANK": "0", "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": str(machines)}
    assert RankInfo.from_env(environ).local_size == local


def test_torchrun_says_which_machine_it_is_and_how_many_ranks_it_has() -> None:
    """They need not be as many on each."""
    environ = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": "2"}
    rank = RankInfo.from_env(environ | {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "1"})
    assert (rank.machine, rank.local_size) == (1, 1)


def test_batch_that_cannot_be_shared_is_refused() -> None:
    """The message names both numbers."""
    with pytest.raises(ConfigError, match=naming("batch_size 32 3")):
        RankInfo(0, 3, 0).local_batch_size(LearnerConfig(agent=SACConfig(batch_size=32)))


def test_share_that_gives_a_minibatch_no_item_is_refused() -> None:
    """PPO with an LSTM has whole items in a minibatch; with fewer of them there would be fewer gradient steps."""
    recurrent = LearnerConfig(agent=PPOConfig(batch_size=8, minibatches=4, lstm_size=16))
    assert RankInfo(0, 2, 0).local_batch_size(recurrent) == 4
    with pytest.raises(ConfigError, match=naming("4 2 agent.batch_size 4")):
        RankInfo(0, 4, 0).local_batch_size(recurrent)


def test_share_that_gives_a_source_no_item_is_refused() -> None:
    """Each rank draws from every table, also where the whole batch would have an item of each."""
    sources = {"demos": SourceSettings(fraction=0.04)}
    config = LearnerConfig(agent=SACConfig(batch_size=32), learner=LearnerSettings(sources=sources))
    assert RankInfo(0, 1, 0).local_batch_size(config) == 32
    with pytest.raises(ConfigError, match=naming("learner.sources demos 0.04 8 4 32")):
        RankInfo(0, 4, 0).local_batch_size(config)


def test_ranks_cannot_all_be_sent_to_one_gpu() -> None:
    """A device with a number is for a learner alone."""
    with pytest.raises(ConfigError, match=naming("'cuda:0' 2")):
        resolve_device("cuda:0", RankInfo(0, 2, 0))


@pytest.mark.parametrize("draw", [draw_normal, draw_uniform])
def test_every_rank_draws_its_rows_of_the_whole_batchs_noise(draw: Callable[..., Tensor]) -> None:
    """The rows of two ranks, side by side, are what one process draws; their generators stay equal."""

    class Half(SingleLearner):
        size = 2

        def __init__(self, index: int) -> None:
            self.index = index

    cpu = torch.device("cpu")
    generators = [torch.Generator().manual_seed(3) for _ in range(3)]
    whole = draw((2, 8, 5), SINGLE_PROCESS, generators[0], cpu, dim=1)
    halves = [draw((2, 4, 5), Half(index), generators[1 + index], cpu, dim=1) for index in range(2)]
    assert torch.equal(torch.cat(halves, dim=1), whole)
    assert len({generator.get_state().numpy().tobytes() for generator in generators}) == 1


@pytest.mark.parametrize(
    "replay, message",
    [(["a:1", "b:1"], "2 replay shards 2 learners"), (["dns:///replay:1"], "table.min_size 4 2 dns:///replay:1")],
)
def test_ranks_that_would_wait_for_each_others_items_refuse(replay: list[str], message: str) -> None:
    """Where torchrun says how many there are, as the launcher does before anything starts."""
    document = {
        "env": {"id": "CartPole-v1", "num_envs": 4},
        "agent": {"algorithm": "ppo", "unroll": 31, "batch_size": 4},
        "table": {"sampler": "fifo", "min_size": 4, "max_items": 64, "chunk_length": 16},
        "learner": {"updates_per_env_step": 0, "publish_every": 1, "max_policy_lag": 0},
        "cluster": {"replay": replay},
    }
    config = from_document(LearnerConfig, document)
    assert RankInfo(0, 1).local_batch_size(config) == 4
    with pytest.raises(ConfigError, match=naming(message)):
        RankInfo(0, 2).local_batch_size(config)
