"""Shared by every test: order, fixed seeds, one thread for arithmetic, a mark for the slow kinds, an end to a hang."""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import numpy as np
import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.waiting import noting_thread_errors
from tidemill import linux, process

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; child processes inherit it
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # rendering needs no screen

SEED = 20240229

# A property is bounded by its examples, not by the time of one of them on a busy machine.
hypothesis.settings.register_profile("tidemill", deadline=None)
hypothesis.settings.load_profile("tidemill")

_LONGEST = (
    "compose/test_stack.py",
    "process/test_documented_commands.py",
    "slurm/test_rehearsal.py",
    "process/test_gpu_rehearsal.py",
    "process/test_pretended_gpus.py",
    "process/test_simulators.py",
    "process/test_train.py",
    "process/test_replay_alone.py",
    "process/test_faulty_environments.py",
    "process/test_shards.py",
    "chaos/test_chaos.py",
    "compose/test_rehearsed_pods.py",
    "learning/test_configs.py",
    "process/test_sweep.py",
    "process/test_portable.py",
)
"""Files that take a minute to ten; a worker that came to one last would be waited for."""

_MARKED_FOLDERS = ("chaos", "process", "learning", "compose", "slurm")


def pytest_configure(config: pytest.Config) -> None:
    """Hear the signals that a shell has turned off, and leave the random numbers of a test to `_fixed_seeds`.

    pytest-randomly is there for the order alone.
    """
    config.option.randomly_reset_seed = False
    config.stash[_TERMINAL] = os.dup(2)  # before a test's output is captured
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:  # by nohup or a shell's `&`
            signal.signal(number, handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the copy of standard error."""
    os.close(config.stash[_TERMINAL])


class FilesInTurn(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a file to a worker, and what a worker that crashed had left, without the test that it was at, to others.

    In xdist 3.8.0 the next worker gets that test too, or all of them wait for ever, each with one test that it starts
    once there is another one (https://github.com/pytest-dev/pytest-xdist/issues/1323, 1327 and 1378).
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a worker's files away; return the test in which it crashed, None if it has ended in order."""
        files = self.assigned_work.pop(node)
        left = [(file, test) for file, tests in files.items() for test, is_done in tests.items() if not is_done]
        for file, test in left[1:]:
            self.workqueue.setdefault(file, {})[test] = False
        if left:
            for other in self.assigned_work:
                self._reschedule(other)
        return left[0][1] if left else None

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it is still collecting
        super()._reschedule(node)
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) == 1:
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:  # noqa: ANN401
    """Return the scheduler of `--dist loadfile`."""
    return FilesInTurn(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage once all tests are imported, not while they are, and then look at none of it again.

    What is imported by then, torch above all, is 400,000 objects that stay; every full collection would go through
    them. What tests make is still collected, but less often: collections were a twentieth of the unit tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(10_000)
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark the tests of the slow kinds, skip what needs what is not there, and limit what is shuffled.

    The files of a folder, and the tests of a file, come in another order in every run. The folders themselves
    stay in order, and so does tests/compose, which starts one cluster and goes through its life. That is the longest of
    all files, and begins before any other; some follow. Several workers go through the folders at once, see `_woven`.
    """
    written = {item: position for position, item in enumerate(items)}
    yield
    for item in items:
        if (folder := _folder_of(item.path)) in _MARKED_FOLDERS:
            item.add_marker(folder)
        if item.get_closest_marker("requires_cuda") and not sys.modules["torch"].cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        if item.get_closest_marker("requires_linux") and not linux.AVAILABLE:
            item.add_marker(pytest.mark.skip(reason=f"tests what only Linux has, with {linux.VARIABLE}=1"))
        if item.get_closest_marker("requires_box2d") and importlib.util.find_spec("Box2D") is None:
            item.add_marker(pytest.mark.skip(reason="needs Box2D, which has no wheel for this Python and machine"))
    items.sort(
        key=lambda item: (
            _place_among_longest(item.path),
            _folder_of(item.path),
            written[item] if _folder_of(item.path) == "compose" else 0,
        )
    )
    if items and hasattr(items[0].config, "workerinput"):
        places = _woven(list(dict.fromkeys(item.path for item in items)))
        items.sort(key=lambda item: places[item.path])


def _woven(files: Sequence[Path]) -> dict[Path, float]:
    """Return places for files, by which those of the unit tests lie between the others.

    Tests of processes wait for much of their time, unit tests never: one after the other, the former leave cores idle.
    The others are through a little earlier, so that short files are last and all workers end together.
    """
    unit = [file for file in files if _folder_of(file) == "unit"]
    others = [file for file in files if _folder_of(file) != "unit"]
    last = ((others, 0.9 if unit else 1.0), (unit, 1.0))
    return {file: end * number / len(group) for group, end in last for number, file in enumerate(group)}


def pytest_collection_finish() -> None:
    """Keep torch's comparison from importing sharded tensors, which no test has: it takes two seconds."""
    comparison = sys.modules.get("torch.testing._comparison")
    if comparison is not None:
        comparison._HAS_DTENSOR = False  # type: ignore[attr-defined]


@cache
def _place_among_longest(path: Path) -> int:
    name = "/".join(path.parts[-2:])
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


@cache
def _folder_of(path: Path) -> str:
    root = Path(__file__).parent
    return path.relative_to(root).parts[0] if path.is_relative_to(root) else ""


class TimedOut(BaseException):
    """A test takes longer than it may.

    Nothing that hypothesis takes for a failure of the code: it would look for a smaller example, and hang again.
    """


_START_TIMER = pytest.StashKey[Callable[[], None]]()
_IS_CALLED = pytest.StashKey[bool]()
_TERMINAL = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:  # noqa: ANN401
    """Have a timeout end the test at once, whoever called the code that hangs."""
    result = yield
    report = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(report):

        def end_test(number: int, frame: FrameType | None) -> None:
            try:
                report(number, frame)  # the stacks of all threads
            except pytest.fail.Exception as error:
                if item.stash.get(_IS_CALLED, False):
                    raise TimedOut(str(error)) from None
                raise  # pytest continues with the other finalizers, and keeps it for a fixture of several tests

        def start() -> None:
            signal.signal(signal.SIGALRM, end_test)
            # Again and again: one error may be swallowed, or its cleanup hang, and a call into C may never return.
            signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout / 10)
            faulthandler.dump_traceback_later(2 * settings.timeout, file=item.config.stash[_TERMINAL], exit=True)

        item.stash[_START_TIMER] = start
        start()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """Stop the timer at an error: to report it takes time, too."""
    try:
        yield
    except BaseException:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Have a timeout raise what no test takes for a failure of the code; stop its timer as in the setup."""
    item.stash[_IS_CALLED] = True
    try:
        yield from pytest_runtest_setup()
    finally:
        item.stash[_IS_CALLED] = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Give the teardown a separate timer: that of a test that failed is stopped, and what hung may hang again."""
    if _START_TIMER in item.stash:
        item.stash[_START_TIMER]()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _thread_errors() -> Iterator[None]:
    """Have no test wait for what a thread that has failed was to do."""
    with noting_thread_errors():
        yield


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Hear signals after the test as before it: commands that it calls in this process take them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    if before != {number: signal.getsignal(number) for number in before}:
        signal.set_wakeup_fd(-1)
        process._actions.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Start every test from the same random state; a test that draws numbers makes its own generator."""
    random.seed(SEED)
    np.random.seed(SEED)  # for libraries that still use the global state
    torch = sys.modules.get("torch")  # importing it here would cost every test 2 s
    if torch is not None:
        # `torch.manual_seed` formats the stack three times, for devices that are not there.
        torch.default_generator.manual_seed(SEED)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(SEED)
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)  # a learner that an earlier test has built sets it for its thread
