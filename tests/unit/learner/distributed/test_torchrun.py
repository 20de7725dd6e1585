"""How many learners a machine starts, and how torchrun ends."""

from __future__ import annotations

import argparse
import io
import logging
import re
import signal
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import DistNetworkError
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from tests.support.naming import naming
from tidemill.config.load import write_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import LearnerConfig
from tidemill.config.services import LearnerSettings
from tidemill.errors import ConfigError, FatalError, GpuLost, Unavailable
from tidemill.params.run_end import HAS_DIVERGED, IS_OVER
from tidemill.process import GPU_LOST
from tidemill.programs.idle import DIVERGED
from tidemill.services.learner import learner, torchrun
from tidemill.services.learner.learner import Learner
from tidemill.services.learner.torchrun import check_saved, rank_count, run_agent


@pytest.mark.parametrize("gpus, ranks", [(0, 1), (1, 1), (4, 4)])
def test_one_learner_is_started_on_each_gpu(monkeypatch: pytest.MonkeyPatch, gpus: int, ranks: int) -> None:
    """`gpu` counts the GPUs the process sees, one learner without any; a number is taken as it is."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert rank_count("gpu") == str(ranks)
    assert rank_count("3") == "3"


def test_one_learner_is_started_on_slices_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver lists eight cards; CUDA gives a process one slice, and a second learner would have no GPU."""
    cards = [8]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards[-1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: cards.append(1))
    assert rank_count("3") == "3"
    assert cards == [8]
    assert rank_count("gpu") == "1"


def test_driver_that_is_too_old_starts_no_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists eight GPUs that torch cannot use: eight learners would train on the CPU, and nobody would notice."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=naming("none 8 GPUs --learner.device cpu")):
        rank_count("gpu")
    assert rank_count("2") == "2"


_SEVERAL = ("--nnodes=2", "--nproc-per-node=gpu", "-m", "tidemill.services.learner")


@pytest.mark.parametrize("words, listed", [(("gpu", "3"), 8), (_SEVERAL, 8), (_SEVERAL, 0)], ids=str)
def test_run_that_has_trained_is_tried_again_when_its_gpus_cannot_be_counted(
    words: tuple[str, ...],
    listed: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are lost, and may return; a new run asks for what was never there. One machine alone trains without any."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: listed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = (*words, "--env.id", "CartPole-v1", "--run.root", str(tmp_path), "--run.name", "lost")
    assert torchrun.main(words) == 2
    (tmp_path / "lost/checkpoints").mkdir(parents=True)
    assert torchrun.main(words) == GPU_LOST
    first, second = capsys.readouterr().err.splitlines()
    assert first == second
    assert re.search(naming("none 8 GPUs" if listed else "no GPU"), first)


@pytest.mark.parametrize("has_diverged", [False, True])
def test_machine_without_gpus_ends_like_the_others_where_the_run_is_over(
    has_diverged: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to train, whatever GPUs are left; also one learner without torchrun."""
    config = LearnerConfig(
        run=RunSettings(root=str(tmp_path), supervisor="job"), learner=LearnerSettings(device="cuda")
    )
    (config.run.folder / "checkpoints").mkdir(parents=True)
    write_document(config, tmp_path / "config.yaml")
    words = (*_SEVERAL, "--config", str(tmp_path / "config.yaml"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    marks = Mock(return_value=(False, False))
    for module in (torchrun, learner):
        monkeypatch.setattr(module, "marks", marks)
    with pytest.raises(GpuLost):
        Learner(config, threading.Event()).run(Mock())
    assert torchrun.main(words) == GPU_LOST
    marks.return_value = (True, has_diverged)
    Learner(config, threading.Event()).run(Mock())
    assert torchrun.main(words) == (DIVERGED if has_diverged else 0)
    assert capsys.readouterr().err.endswith(f"learner: {HAS_DIVERGED if has_diverged else IS_OVER}\n")


def test_rendezvous_outlives_ranks_that_were_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeat is a thread that joins itself if it is the last to hold it, and says so in a traceback."""
    held: list[weakref.ref[argparse.Namespace]] = []

    def signalled(options: argparse.Namespace) -> None:
        rendezvous = argparse.Namespace()  # held by torch's agent, which runs here
        held.append(weakref.ref(rendezvous))
        raise SignalException("asked to end", signal.SIGTERM)

    monkeypatch.setattr(torchrun, "run_ranks", signalled)
    assert not run_agent(argparse.Namespace(max_restarts=0), [], {}, None)
    assert held[0]() is not None


def test_machine_that_ends_before_another_has_heard_of_it_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners of several machines meet at the end in a store, which ends with its machine."""
    logger, handler = logging.getLogger(SimpleElasticAgent.__module__), logging.StreamHandler(said := io.StringIO())
    logger.addHandler(handler)
    store = Mock(timeout=None)
    store.wait.side_effect = DistNetworkError("connection reset by peer")
    group = SimpleNamespace(state="SUCCEEDED", group_world_size=2)
    agent: Any = SimpleNamespace(_worker_group=group, _store=store, _exit_barrier_timeout=1.0)
    monkeypatch.setattr(torchrun, "run_ranks", lambda _: LocalElasticAgent._exit_barrier(agent))
    assert run_agent(argparse.Namespace(max_restarts=0), [], {}, None)
    assert store.wait.called
    logger.warning("another message")
    logger.removeHandler(handler)
    assert said.getvalue() == "another message\n"


@pytest.mark.parametrize(
    "codes, first, is_saved",
    [
        ([0, 1], 0, True),
        ([-signal.SIGTERM, 0], 0, True),
        ([1, 0], 0, False),
        ([-9, -9], 0, False),
        ([1, 1], 2, True),  # of another machine than that of rank 0
    ],
)
def test_first_rank_that_fails_when_asked_to_end_has_not_saved(
    codes: list[int], first: int, is_saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked is to hear of it. The others save nothing, nor does one that is asked to end before it trains."""
    monkeypatch.setattr(torchrun, "_closed_with", {0: 1})  # it was on this machine before, and failed
    ranks: Any = SubprocessContext.__new__(SubprocessContext)
    ranks._failures = {}
    ranks.envs = {place: {"RANK": str(first + place)} for place in range(len(codes))}
    ranks.subprocess_handlers = {rank: Mock(proc=Mock(poll=lambda code=code: code)) for rank, code in enumerate(codes)}

    def signalled(options: argparse.Namespace) -> None:
        ranks._close(signal.SIGTERM)
        raise SignalException("asked to end", signal.SIGTERM)

    monkeypatch.setattr(torchrun, "run_ranks", signalled)
    assert not run_agent(argparse.Namespace(max_restarts=0), [], {}, None)
    with nullcontext() if is_saved else pytest.raises(FatalError, match=naming("rank 0", codes[0])):
        check_saved()


@pytest.mark.parametrize("is_asked", [True, False])
def test_ranks_have_the_time_to_save_only_if_they_are_asked_to_end(
    is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose other machines are lost may hang in an exchange, and this machine is to join the others again."""
    close = Mock()
    monkeypatch.setattr(SubprocessContext, "_close", close)
    ranks: Any = SubprocessContext.__new__(SubprocessContext)
    ranks._failures, ranks.subprocess_handlers = {}, {}

    def ended(options: argparse.Namespace) -> None:
        try:  # as torch's agent does
            raise SignalException("asked to end", signal.SIGTERM) if is_asked else DistNetworkError("lost")
        finally:
            ranks._close(signal.SIGTERM, timeout=3600)

    monkeypatch.setattr(torchrun, "run_ranks", ended)
    with nullcontext() if is_asked else pytest.raises(Unavailable):
        run_agent(argparse.Namespace(max_restarts=0), [], {}, None)
    assert close.call_args.kwargs["timeout"] == (3600 if is_asked else 30)


@pytest.mark.parametrize("words", [(), ("4",), ("four", "3"), ("auto", "3"), ("0", "3"), ("4", "--config")], ids=str)
def test_command_line_without_learners_and_restarts_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with what is allowed."""
    assert torchrun.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(naming(f"'{' '.join(words)}' gpu --config"), line)


def test_help_names_the_words_before_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """That of torch, which follows, does not know them."""
    with pytest.raises(SystemExit):
        torchrun.main(["--help"])
    assert "RANKS RESTARTS" in capsys.readouterr().out
