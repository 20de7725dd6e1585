"""The log of a replay service that cannot be written, or must not be."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.naming import naming
from tests.support.replay_log import RANKED, kill, load, options, write
from tests.support.replay_service import ServerProcess, everything, open_appender, server_process
from tests.support.replay_streams import make_chunk, make_items
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import NotFound, Reason, ResourceExhausted, TidemillError, Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.writing.appender import StreamAppender
from tidemill.services.replay.__main__ import main
from tidemill.services.replay.commands import administration


def fill_disk_after_a_chunk(server: ServerProcess, appender: StreamAppender, folder: Path) -> None:
    """Store one chunk; leave the log 100 bytes, too few for another."""
    write(appender, 0)
    assert appender.flush(WAIT_S)
    size = sum(path.stat().st_size for path in folder.glob("*.log"))
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))


def test_full_disk_holds_acknowledgements_until_there_is_room(tmp_path: Path) -> None:
    """Nothing is acknowledged that is not written; samples continue; with room it recovers by itself, nothing lost."""
    with server_process("127.0.0.1:0", *options(tmp_path)) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        with open_appender(server.address) as appender:
            fill_disk_after_a_chunk(server, appender, tmp_path)
            for step in range(4, 40, 4):
                write(appender, step)
            wait_until(lambda: scrape(server.metrics_address)["tidemill_replay_log_full"] == 1.0, "the disk to be full")
            assert appender.unacknowledged_chunks == 9
            with ReplaySampler([server.address], RANKED, 16, max_in_flight_batches=1) as stream:
                assert stream.take(WAIT_S) is not None
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert appender.flush(WAIT_S)
        assert scrape(server.metrics_address)["tidemill_replay_log_full"] == 0.0
        kill(server)
    with server_process("127.0.0.1:0", *options(tmp_path)) as again:
        assert everything(again.address, RANKED) == [(0, step) for step in range(40)]


def test_repeated_creation_and_removal_wait_for_the_record_of_the_first(tmp_path: Path) -> None:
    """Neither is confirmed while it is not on disk, where a crash would take it back; what is there long ago is."""
    other = replace(RANKED, name="other")
    with server_process("127.0.0.1:0", *options(tmp_path)) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        size = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
        with ReplayClient(server.address, deadline_s=0.5) as hasty:
            for _ in range(2):
                with pytest.raises(Unavailable):
                    hasty.create_table(other)
            assert not client.create_table(RANKED)
            for _ in range(2):
                with pytest.raises(Unavailable):
                    hasty.drop_table("t")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert not client.create_table(other)
        with pytest.raises(NotFound):
            client.drop_table("t")


def test_commands_name_the_full_disk_that_a_change_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The change is in memory at once; the missing confirmation does not mean that no server is there."""
    with server_process("127.0.0.1:0", *options(tmp_path)) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        size = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
        with monkeypatch.context() as hasty:
            hasty.setattr(administration, "_DEADLINE_S", 1.0)
            assert main(["update", server.address, "t", "--max-items", "50"]) == 1
        assert "Is its disk full (`tidemill replay tables`)?" in capsys.readouterr().err
        assert main(["tables", server.address]) == 0
        shown = capsys.readouterr().out
        assert "of at most 50 items" in shown
        assert "DISK IS FULL" in shown
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert main(["update", server.address, "t", "--max-items", "50"]) == 0
        assert "DISK" not in capsys.readouterr().out


def test_server_killed_with_a_full_disk_has_what_it_acknowledged(tmp_path: Path) -> None:
    """A record that did not fit is cut off at the restart; the actor sends it again. No snapshot is ahead of it."""
    arguments = options(tmp_path)
    with server_process("127.0.0.1:0", *arguments) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        with open_appender(server.address) as appender:
            fill_disk_after_a_chunk(server, appender, tmp_path)
            write(appender, 4)
            wait_until(lambda: scrape(server.metrics_address)["tidemill_replay_log_full"] == 1.0, "the disk to be full")
            with pytest.raises(ResourceExhausted, match="no snapshot was written") as refused:
                client.checkpoint()
            assert refused.value.reason is Reason.DISK_FULL
            kill(server)
            with server_process(server.address, *arguments) as again:
                assert {"torn_bytes=100", "missing_records=0"} <= set(again.before_serving.split())
                assert appender.flush(WAIT_S)
                assert everything(again.address, RANKED) == [(0, step) for step in range(8)]


def test_refused_message_leaves_no_trace_in_the_log(tmp_path: Path) -> None:
    """What is malformed or out of order is refused by name, not written, and the server continues."""
    refused = (
        (replace(make_chunk(0, 0, 4, 4), blocks=(b"x", b"y", b"z")), "column 'step' 1"),
        (make_chunk(0, 0, 8, 4), "gap"),
        (replace(make_chunk(0, 0, 4, 4), step_count=9), "step_count 9"),
    )
    with server_process("127.0.0.1:0", *options(tmp_path)) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        for chunk, message in refused:
            with open_appender(server.address) as appender:
                write(appender, 0)
                assert appender.flush(WAIT_S)
                before = client.describe_table("t").log_bytes
                appender.append([chunk], [make_items(0, [(0, 0, 1)])])
                with pytest.raises(TidemillError, match=naming(message)):
                    appender.flush(WAIT_S)
            assert client.describe_table("t").log_bytes == before
        kill(server)
    with server_process("127.0.0.1:0", *options(tmp_path)) as again, open_appender(again.address) as appender:
        write(appender, 0)
        assert appender.flush(WAIT_S)
        assert everything(again.address, RANKED) == sorted((len(refused) + 1) * [(0, step) for step in range(4)])


def test_log_that_cannot_be_written_ends_the_server_with_a_reason(tmp_path: Path) -> None:
    """A lost folder is not a full disk: nothing more is acknowledged, and whoever started the server is informed."""
    folder = tmp_path / "log"
    with server_process("127.0.0.1:0", *options(folder, segment_mib=1)) as server:
        with ReplayClient(server.address) as client:
            client.create_table(RANKED)
        shutil.rmtree(folder)
        with load(server.address, 2):
            errors, _ = server.process.communicate(timeout=WAIT_S)
    assert server.process.returncode == 1
    assert "replay: the replay log cannot be written" in errors
    assert "No such file or directory" in errors


def test_server_on_a_read_only_disk_says_so_and_ends(tmp_path: Path) -> None:
    """It does not serve what it could not add to; the log is as it was."""
    with server_process("127.0.0.1:0", *options(tmp_path / "log")) as server:
        with ReplayClient(server.address) as client, open_appender(server.address) as appender:
            client.create_table(RANKED)
            write(appender, 0)
            assert appender.flush(WAIT_S)
        server.stop()
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}"
    isolated = ("unshare", "--mount", "sh", "-c")
    if subprocess.run([*isolated, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    module = [sys.executable, "-m", "tidemill.services.replay", *options(tmp_path / "log")]
    command = [*isolated, f'{mount} && exec "$@"', "sh", *module, "--replay.server.address", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 1
    assert "Read-only file system" in ended.stderr
    assert "Traceback" not in ended.stderr
    with server_process("127.0.0.1:0", *options(tmp_path / "log")) as again:
        assert everything(again.address, RANKED) == [(0, step) for step in range(4)]
