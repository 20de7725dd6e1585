"""Benchmarks of a learner on a GPU leave it the cores that it would have in a run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest
import torch
import torch.distributed as dist

from benchmarks import feed, learner, learner_feed, rank_averages
from tidemill import linux


class _StartedError(Exception):
    """Ends a benchmark where it would start its learner."""


@pytest.mark.parametrize("on_gpu, core", [(True, None), (False, "0")])
def test_learner_is_pinned_on_a_cpu_alone(on_gpu: bool, core: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it launches, decodes and waits at the same time; one core would be shared by all of it."""
    cores: list[str | None] = []

    @contextlib.contextmanager
    def process(core: str | None, *_: str) -> Iterator[int]:
        cores.append(core)
        if cores:
            raise _StartedError
        yield 0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(learner, "process", process)
    with pytest.raises(_StartedError):
        learner.learner_rate("config.yaml", [], 1.0)
    assert cores == [core]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_updates_alone_are_pinned_on_a_cpu_alone(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's backward passes have a separate thread."""
    commands: list[list[str]] = []

    def check_output(command: list[str], **_: object) -> str:
        commands.append(command)
        return "12.5"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(subprocess, "check_output", check_output)
    assert learner._alone("config.yaml", 1.0) == 12.5
    assert (commands[0][0] == "taskset") == (not on_gpu)


@pytest.mark.parametrize("allowed, core", [({5, 6}, "6"), ({7, 3, 5}, "5"), ({4}, "4")])
def test_services_run_on_a_processor_that_is_allowed(
    allowed: set[int], core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have others than 0 and 1, to which nothing can be pinned there."""
    cores: list[str | None] = []

    @contextlib.contextmanager
    def process(core: str | None, *_: str) -> Iterator[int]:
        cores.append(core)
        yield 0

    monkeypatch.setattr(linux, "allowed_processors", lambda: allowed)
    monkeypatch.setattr(learner_feed, "process", process)
    monkeypatch.setattr(learner_feed, "fill", lambda *_: None)
    with learner_feed.servers(None, "config.yaml", 1):  # type: ignore[arg-type]
        assert cores == [core, core]


def test_feed_is_kept_on_two_processors_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its services have the second."""
    kept: list[set[int]] = []

    def keep(_: int, processors: Iterable[int]) -> None:
        kept.append(set(processors))
        raise _StartedError

    monkeypatch.setattr(sys, "argv", ["feed"])
    monkeypatch.setattr(linux, "allowed_processors", lambda: {5, 6, 7})
    monkeypatch.setattr(os, "sched_setaffinity", keep)
    with pytest.raises(_StartedError):
        feed.main()
    assert kept == [{5, 6}]


def test_rank_waits_for_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 sets GPU 1 before it joins, and waits for that one: a thread's first GPU is number 0."""
    done: list[str] = []

    class _OnGpu:
        is_cuda, device = True, torch.device("cuda", 1)

        def __itruediv__(self, ranks: int) -> _OnGpu:
            done.append(f"divided by {ranks}")
            return self

    monkeypatch.setattr(dist, "all_reduce", lambda gradients: done.append("added up"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append(f"waited for {device}"))
    assert rank_averages._average_ms(_OnGpu()) >= 0  # type: ignore[arg-type]
    assert done == ["added up", "divided by 2", "waited for cuda:1"]
