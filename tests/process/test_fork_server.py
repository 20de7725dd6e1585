"""Services forked from a process that has imported torch, as their launcher sees them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.forked_service import children, fork_read, held_client
from tests.support.processes import children_of
from tests.support.waiting import wait_until
from tidemill import linux
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs import fork_client
from tidemill.programs.fork_client import READY_S, ForkClient
from tidemill.programs.fork_server import WITH_TORCH, WITHOUT_TORCH, Order
from tidemill.services.launcher.supervise.fork_server import ForkedProcess, ForkServer

pytestmark = pytest.mark.process

_BOUND_S = 120.0
_SAYS = "tests.process.says"


@asynccontextmanager
async def _server(client: ForkClient | None = None) -> AsyncIterator[ForkServer]:
    server = ForkServer(os.environ, client)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_client, "ANSWER_S", _BOUND_S)
        try:
            yield server
        finally:
            server.close()


async def _forked(server: ForkServer, output: Path, *arguments: str, needs_torch: bool = True) -> ForkedProcess | None:
    environment = os.environ | {PARENT_VARIABLE: str(os.getpid()), "MARK": "of this one"}
    with output.open("ab") as file:
        return await server.fork(Order(_SAYS, arguments, environment, needs_torch=needs_torch), file)


async def _ended(process: ForkedProcess) -> int:
    return await asyncio.wait_for(process.wait(), _BOUND_S)


async def test_forked_process_is_like_one_that_was_started(tmp_path: Path) -> None:
    """Its parent, session, arguments, environment, output, command line and exit code are those of `python -m`."""
    async with _server() as server:
        process = await _forked(server, tmp_path / "log", "state", "--name", "x")
        assert process is not None
        assert await _ended(process) == 7
        said = json.loads((tmp_path / "log").read_text())
        assert said == {
            "arguments": ["state", "--name", "x"],
            "parent": os.getpid(),
            "session": process.pid,
            "mark": "of this one",
            "parent variable": None,
            "input": "",
            "command": ["-m", _SAYS, "state", "--name", "x"],
            "main": "__main__",
            "descriptors": [0, 1, 2],
        }


async def test_forked_processes_share_torch_but_no_random_numbers(tmp_path: Path) -> None:
    """What was imported is there at once; the global generators of Python and NumPy differ."""
    async with _server() as server:
        for name in ("first", "second"):
            process = await _forked(server, tmp_path / name, "draw")
            assert process is not None
            assert await _ended(process) == 0
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("first", "second"))
    assert first.pop("has torch")
    assert second.pop("has torch")
    assert all(first[name] != second[name] for name in ("random", "numpy")), (first, second)


async def test_what_needs_no_torch_is_forked_while_the_server_imports_it(tmp_path: Path) -> None:
    """What needs torch comes when the server is ready, and the one that served meanwhile has ended by then."""
    gate = tmp_path / "gate"
    async with _server(client=held_client(gate)) as server:
        (pid,) = children()
        without = await _forked(server, tmp_path / "without", "state", needs_torch=False)
        assert without is not None
        assert await _ended(without) == 7
        assert json.loads((tmp_path / "without").read_text())["descriptors"] == [0, 1, 2]
        another = await _forked(server, tmp_path / "another", "draw", needs_torch=False)
        assert another is not None
        assert await _ended(another) == 0
        assert not json.loads((tmp_path / "another").read_text())["has torch"]
        waiting = asyncio.create_task(_forked(server, tmp_path / "with", "draw"))
        done, _ = await asyncio.wait([waiting], timeout=0)
        assert not done
        gate.write_bytes(b"")
        process = await waiting
        assert process is not None
        assert await _ended(process) == 0
        assert json.loads((tmp_path / "with").read_text())["has torch"]
        assert children_of(pid) == set()


async def test_server_that_is_killed_while_it_imports_leaves_nobody(tmp_path: Path) -> None:
    """The one that serves meanwhile ends with it; services are then started as separate programs."""
    async with _server(client=held_client(tmp_path / "gate")) as server:
        (pid,) = children()
        process = await _forked(server, tmp_path / "log", "stay", needs_torch=False)
        assert process is not None
        (beside,) = children_of(pid)
        watched = os.pidfd_open(beside)
        os.kill(pid, signal.SIGKILL)
        assert select.select([watched], [], [], _BOUND_S)[0]  # readable when the process has ended
        os.close(watched)
        assert await _forked(server, tmp_path / "log", "state") is None
        process.send_signal(signal.SIGTERM)
        assert await _ended(process) == -signal.SIGTERM


async def test_forked_process_outlives_the_server_and_shows_the_signal_that_ended_it(tmp_path: Path) -> None:
    """It is this process's child: the server is not needed once it runs; without a server nothing is forked."""
    async with _server() as server:
        process = await _forked(server, tmp_path / "log", "stay")
        assert process is not None
        server.close()
        assert await _forked(server, tmp_path / "log", "stay") is None
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert await _ended(process) == -signal.SIGTERM


async def test_server_that_imports_is_given_up_at_once(tmp_path: Path) -> None:
    """A launcher that is to stop does not wait for torch."""
    async with _server(client=held_client(tmp_path / "gate")) as server:
        waiting = asyncio.create_task(_forked(server, tmp_path / "log", "state"))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        server.give_up()
        assert await asyncio.wait_for(waiting, READY_S / 2) is None


async def test_forked_process_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    """It ends with the main thread, whichever waited for the server."""
    async with _server() as server:
        process = await _forked(server, tmp_path / "log", "stay", needs_torch=False)
        assert process is not None
        await asyncio.get_running_loop().shutdown_default_executor()
        wait_until(lambda: (tmp_path / "log").read_text() == "here\n", "it has begun")
        process.send_signal(signal.SIGTERM)
        assert await _ended(process) == -signal.SIGTERM


async def test_process_that_cannot_be_watched_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files: nothing runs that nobody would end."""
    async with _server() as server:
        before = children()
        refuse = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        monkeypatch.setattr(linux, "open_process", refuse)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            await _forked(server, tmp_path / "log", "stay", needs_torch=False)
        assert children() == before


async def test_frozen_server_is_given_up_and_nothing_is_left_of_what_it_was_asked_for(tmp_path: Path) -> None:
    """Asked for a process that it forks too late, if at all, it is ended; another one can be started."""
    async with _server() as server:
        first = await _forked(server, tmp_path / "first", "state")
        assert first is not None
        await _ended(first)
        (pid,) = children()
        os.kill(pid, signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fork_client, "ANSWER_S", 0.5)
            assert await _forked(server, tmp_path / "log", "state") is None
        assert children() == set()
        assert (tmp_path / "log").read_text() == ""
        server.start()
        again = await _forked(server, tmp_path / "again", "state")
        assert again is not None
        assert await _ended(again) == 7


_ASKER = """
import asyncio, os, sys
from pathlib import Path
from tests.process.test_fork_server import _forked, _server

async def main():
    async with _server() as server:
        process = await _forked(server, Path(sys.argv[1]), "stay")
        print(process.pid, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_server_that_cannot_be_started_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, as with too many open files, services are separate programs."""
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", Mock(side_effect=error))
        async with _server() as server:
            assert await _forked(server, tmp_path / "log", "state", needs_torch=False) is None
            patched.undo()
            server.start()
            process = await _forked(server, tmp_path / "log", "state", needs_torch=False)
            assert process is not None
            assert await _ended(process) == 7


def test_forked_process_ends_with_the_one_that_asked_even_when_frozen(tmp_path: Path) -> None:
    """Killed, the launcher asks for nothing any more: the kernel ends what was forked for it, and the server."""
    with subprocess.Popen(
        [sys.executable, "-c", _ASKER, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as asker:
        assert asker.stdout is not None
        pid = int(asker.stdout.readline())
        pids = {pid, *children_of(asker.pid)}
        assert len(pids) == 2
        watched = [os.pidfd_open(each) for each in pids]
        wait_until(lambda: (tmp_path / "log").read_text() == "here\n", "it has begun")
        os.kill(pid, signal.SIGSTOP)
        asker.kill()
        for descriptor in watched:
            assert select.select([descriptor], [], [], _BOUND_S)[0]  # readable when the process has ended
            os.close(descriptor)


def test_forked_process_may_have_a_server_of_its_own(tmp_path: Path) -> None:
    """It forks at once, children that show their environment; all end with it, and nobody else holds its output."""
    asker = fork_read(_SAYS, ["asks"], directory=str(tmp_path), with_server=True)
    try:
        said = sorted(asker.stdout.readline().split() for _ in range(2))
        assert said[1] == ["here"]
        directory, server, child = said[0]
        assert directory == str(tmp_path)
        for pid in (server, child):
            assert f"\nPPid:\t{asker.pid}\n" in Path(f"/proc/{pid}/status").read_text()
            environment = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
            assert f"{PARENT_VARIABLE}={asker.pid}".encode() in environment
            assert {os.fsencode(f"{name}={os.environ[name]}") for name in os.environ} <= set(environment)
        watched = [os.pidfd_open(int(pid)) for pid in (server, child)]
        asker.kill()
        for descriptor in watched:
            assert select.select([descriptor], [], [], _BOUND_S)[0]  # readable when the process has ended
            os.close(descriptor)
        assert asker.communicate(_BOUND_S) == ("", None)
    finally:
        asker.kill()
        asker.communicate(_BOUND_S)


def test_what_is_preloaded_brings_no_metrics_of_a_service() -> None:
    """A forked actor would otherwise show the learner's."""
    code = (
        f"import importlib\nfor name in {WITHOUT_TORCH + WITH_TORCH}: importlib.import_module(name)\n"
        "from prometheus_client import REGISTRY\n"
        "print({metric.name for metric in REGISTRY.collect()})"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not any(f"tidemill_{service}" in said for service in ("actor", "learner", "evaluator", "inference")), said
