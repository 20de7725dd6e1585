"""Folders of files to tables: what is damaged is refused, what was used up stays so."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.damage import flip
from tests.support.exported import fill
from tests.support.naming import naming
from tests.support.proxy import Proxy
from tests.support.replay_log import kill, options
from tests.support.replay_service import LocalServer, local_server, lose_answer_of_creation, server_process
from tests.support.replay_streams import FIFO, make_config
from tests.support.waiting import WAIT_S, crowd
from tidemill.errors import AlreadyExists, DataLoss, FatalError, InvalidArgument, Unavailable
from tidemill.replay import export_table, import_table
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import TableDescription, TableUpdate
from tidemill.replay.transfer import folder as files
from tidemill.replay.transfer import importing, plan
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.services.replay.__main__ import main


def _damaged(folder: Path, how: str) -> None:
    steps, manifest = folder / "steps-000000.safetensors", folder / "manifest.json"
    document = json.loads(manifest.read_text())
    if how == "flipped":
        flip(steps, -1)
    elif how == "cut":
        steps.write_bytes(steps.read_bytes()[:-1])
    elif how == "missing":
        steps.unlink()
    elif how == "foreign":
        manifest.write_text('{"format": "something else"}')
    elif how == "no manifest":
        manifest.unlink()
    elif how == "no json":
        manifest.write_bytes(b"\xff\x00")
    else:
        changes: dict[str, Any] = {
            "newer": {"version": 2},
            "edited": {"items": 39},
            "outside": {"files": [document["files"][0] | {"name": "../../steps-000000.safetensors"}]},
        }
        document |= changes[how]
        document.pop("sha256")
        digest = files.digest_of(document) if how != "edited" else "0"
        manifest.write_text(json.dumps(document | {"sha256": digest}))


@pytest.mark.parametrize(
    "how,error,said",
    [
        ("flipped", DataLoss, "steps-000000.safetensors SHA-256"),
        ("cut", DataLoss, "bytes"),
        ("missing", DataLoss, "steps-000000.safetensors"),
        ("foreign", InvalidArgument, "manifest.json"),
        ("no manifest", InvalidArgument, "manifest.json `tidemill replay export`"),
        ("no json", DataLoss, "manifest.json"),
        ("newer", FatalError, "2 1"),
        ("edited", DataLoss, "checksum"),
        ("outside", DataLoss, "'../../steps-000000.safetensors'"),
    ],
)
def test_damaged_or_foreign_folder_is_refused(
    server: LocalServer, client: ReplayClient, tmp_path: Path, how: str, error: type[Exception], said: str
) -> None:
    """By name, and before anything is stored."""
    with local_server() as source:
        fill(source.address)
        export_table(source.address, "t", tmp_path / "out")
    _damaged(tmp_path / "out", how)
    with pytest.raises(error, match=naming(said)):
        import_table(server.address, tmp_path / "out")
    assert client.list_tables() == ()


def test_items_that_fit_no_table_are_refused(tmp_path: Path) -> None:
    """Files with right checksums whose numbers cannot be: beyond the rows, or across two streams."""
    with local_server() as source:
        fill(source.address)
        export_table(source.address, "t", tmp_path / "out")
    exported = ExportedTable(tmp_path / "out")
    for first, length in ((39, 2), (0, 6), (-1, 1), (0, 0)):
        exported.first_rows[3], exported.lengths[3] = first, length
        with pytest.raises(DataLoss, match=naming("item 3", length, first, 1, 5)):
            exported.check_items()
    exported.continues[5] = False
    exported.first_rows[3], exported.lengths[3] = 19, 2
    with pytest.raises(DataLoss, match=naming("stream")):
        exported.check_items()


@pytest.mark.usefixtures("patient_questions")
def test_import_beside_what_is_there(server: LocalServer, client: ReplayClient, tmp_path: Path) -> None:
    """Behind the items of an equal table, as its limiter allows; under another name; never into another table."""
    fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    assert import_table(server.address, tmp_path / "out").table == "t"
    assert client.describe_table("t").items == 80
    assert import_table(server.address, tmp_path / "out", table="copy").table == "copy"
    assert client.describe_table("copy").items == 40
    client.create_table(replace(make_config("other"), max_items=50))
    with pytest.raises(AlreadyExists, match="max_items"):
        import_table(server.address, tmp_path / "out", table="other")
    client.update_table("copy", TableUpdate(queue_size=40))
    with pytest.raises(Unavailable, match=naming("table 'copy' rate limiter: queue_size 40")):
        import_table(server.address, tmp_path / "out", table="copy", timeout_s=crowd())


def test_import_into_a_full_table_says_how_many_items_it_dropped(
    server: LocalServer, client: ReplayClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None does once the limit of the table is raised, with which parts of several servers are joined in one."""
    fill(server.address, make_config(max_items=50))
    export_table(server.address, "t", tmp_path / "out")
    report = import_table(server.address, tmp_path / "out")
    assert (report.table_items, report.evicted_items) == (50, 30)
    assert main(["import", server.address, str(tmp_path / "out"), "--table", "joined"]) == 0
    assert "dropped" not in capsys.readouterr().out
    client.update_table("joined", TableUpdate(max_items=70))
    assert main(["import", server.address, str(tmp_path / "out"), "--table", "joined"]) == 0
    assert "70 items now; 10 were dropped" in capsys.readouterr().out
    client.update_table("joined", TableUpdate(max_items=110))
    assert import_table(server.address, tmp_path / "out", table="joined").evicted_items == 0


@pytest.mark.parametrize("is_off", [False, True])
def test_import_leaves_a_rate_limiter_as_it_was_in_use(
    server: LocalServer, client: ReplayClient, tmp_path: Path, is_off: bool
) -> None:
    """One that was switched off stays off in the copy, beside what else was changed; an export without it is read."""
    fill(server.address)
    client.update_table("t", TableUpdate(max_items=70, rate_limiter_on=not is_off))
    export_table(server.address, "t", tmp_path / "out")
    report = import_table(server.address, tmp_path / "out", table="copy")
    described = client.describe_table("copy")
    assert (described.rate_limiter_off, described.config.max_items, report.table_items) == (is_off, 70, 40)
    assert import_table(server.address, tmp_path / "out", table="copy").table_items == 70
    manifest = tmp_path / "out" / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["rate_limiter_off"], document["sha256"]
    manifest.write_text(json.dumps(document | {"sha256": files.digest_of(document)}))
    import_table(server.address, tmp_path / "out", table="earlier")
    assert not client.describe_table("earlier").rate_limiter_off


def test_import_does_not_give_out_again_what_was_used_up(tmp_path: Path) -> None:
    """Of items that may be sampled three times, one that was sampled twice is once more, also after a crash."""
    thrice = make_config(sampler=FIFO, max_times_sampled=3)
    arguments = options(tmp_path / "data")
    with local_server() as source, server_process("127.0.0.1:0", *arguments) as target:
        fill(source.address, thrice, 5)
        with ReplaySampler([source.address], thrice, 8) as sampler:
            assert sampler.take(WAIT_S) is not None  # items 0 and 1 are used up; no second batch is left
        assert _times_sampled(source.address, tmp_path / "out") == [2, 0, 0]
        import_table(target.address, tmp_path / "out")
        kill(target)
    with server_process("127.0.0.1:0", *arguments) as again:
        assert _times_sampled(again.address, tmp_path / "again") == [2, 0, 0]
        with ReplaySampler([again.address], thrice, 7) as sampler, ReplayClient(again.address) as client:
            assert sampler.take(WAIT_S) is not None
            assert client.describe_table("t").items == 0


def _times_sampled(address: str, folder: Path) -> list[int]:
    """Export a table; return how often each item was sampled."""
    export_table(address, "t", folder)
    exported = ExportedTable(folder)
    return exported.item_values(0, exported.items)[2].tolist()  # type: ignore[no-any-return]


def test_import_that_cannot_count_the_table_has_succeeded(
    server: LocalServer, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is stored when the server is asked: an error would have it imported a second time."""
    fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(ReplayClient, "describe_table", Mock(side_effect=Unavailable("away")))
        report = import_table(server.address, tmp_path / "out", table="copy")
    assert (report.items, report.table_items) == (40, None)
    assert client.describe_table("copy").items == 40


def _losing_switches_on(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the first `count` calls that switch a rate limiter on fail."""
    update, left = ReplayClient.update_table, iter(range(count))

    def update_table(client: ReplayClient, name: str, change: TableUpdate) -> TableDescription:
        if change.rate_limiter_on and next(left, None) is not None:
            raise Unavailable("away")
        return update(client, name, change)

    monkeypatch.setattr(ReplayClient, "update_table", update_table)


def test_import_tries_again_to_switch_the_rate_limiter_on(
    server: LocalServer, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is away for a moment; one that stays away gets an error: the items are stored, what to do."""
    fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    _losing_switches_on(monkeypatch, 2)
    import_table(server.address, tmp_path / "out", table="copy")
    assert not client.describe_table("copy").rate_limiter_off
    _losing_switches_on(monkeypatch, 10**9)
    with pytest.raises(Unavailable, match=naming("table 'late' stored --rate-limiter on")):
        import_table(server.address, tmp_path / "out", table="late", timeout_s=1.0)
    assert client.describe_table("late").items == 40


def test_failed_import_leaves_no_table_and_can_be_repeated(
    server: LocalServer, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner cannot take half of a table for the whole; the second import is that of a new table, unlimited."""
    fill(server.address)
    client.update_table("t", TableUpdate(queue_size=5))
    export_table(server.address, "t", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(ExportedTable, "item_values", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            import_table(server.address, tmp_path / "out", table="copy")
    assert [table.config.name for table in client.list_tables()] == ["t"]
    assert import_table(server.address, tmp_path / "out", table="copy", timeout_s=2.0).table_items == 40
    assert not client.describe_table("copy").rate_limiter_off


def test_import_into_a_server_that_goes_away_says_how_to_remove_the_table(
    server: LocalServer, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another import would append to the part that is there, and leave the rate limiter off."""
    fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    item_values = ExportedTable.item_values
    with Proxy(server.address) as proxy, ExitStack() as away, monkeypatch.context() as patch:

        def leave(exported: ExportedTable, start: int, stop: int) -> Any:  # noqa: ANN401 - as it is
            away.enter_context(proxy.refusing())
            return item_values(exported, start, stop)

        patch.setattr(ExportedTable, "item_values", leave)
        with pytest.raises(Unavailable, match=naming("'copy'", f"tidemill replay drop {proxy.address} copy")):
            import_table(proxy.address, tmp_path / "out", table="copy", timeout_s=crowd())
    client.drop_table("copy")
    assert import_table(server.address, tmp_path / "out", table="copy").table_items == 40


def test_import_whose_creation_was_not_answered_fills_its_own_table(
    server: LocalServer, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated call finds the table of the first one, whose rate limiter is to be off all the same."""
    fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    item_values, were_off = ExportedTable.item_values, []

    def seen(exported: ExportedTable, start: int, stop: int) -> Any:  # noqa: ANN401 - as it is
        were_off.append(client.describe_table("copy").rate_limiter_off)
        return item_values(exported, start, stop)

    monkeypatch.setattr(ExportedTable, "item_values", seen)
    with Proxy(server.address) as proxy:
        lose_answer_of_creation(monkeypatch, proxy, server)
        import_table(proxy.address, tmp_path / "out", table="copy")
    described = client.describe_table("copy")
    assert (described.items, described.rate_limiter_off) == (40, False)
    assert were_off
    assert all(were_off)


@pytest.mark.parametrize("is_off", [False, True])
def test_interrupted_import_is_not_repeated_behind_its_own_part(
    server: LocalServer,
    client: ReplayClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_off: bool,
) -> None:
    """Killed, it removes nothing: its items would be there twice, and the rate limiter off for good."""
    fill(server.address)
    client.update_table("t", TableUpdate(rate_limiter_on=not is_off))
    export_table(server.address, "t", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(importing, "removed_on_failure", lambda *_: nullcontext())
        patch.setattr(ExportedTable, "item_values", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            import_table(server.address, tmp_path / "out", table="copy")
    again = ["import", server.address, str(tmp_path / "out"), "--table", "copy"]
    assert main(again) != 0
    assert re.search(naming("--append", f"tidemill replay drop {server.address} copy"), capsys.readouterr().err)
    assert client.describe_table("copy").items == 0
    assert main([*again, "--append"]) == 0
    assert client.describe_table("copy").items == 40
    assert (main(again) == 0) is is_off  # with so many items it is whole, and has its rate limiter off as exported


def test_import_that_fails_behind_other_items_says_how_to_remove_its_own(
    server: LocalServer, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated, it would store them twice."""
    monkeypatch.setattr(plan, "_MESSAGE_CHUNKS", 2)
    fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    client.update_table("t", TableUpdate(queue_size=60))
    with pytest.raises(Unavailable, match=naming("queue_size 60")) as refused:
        import_table(server.address, tmp_path / "out", timeout_s=1.0)
    assert client.describe_table("t").items > 40
    commands = re.findall(r"`tidemill replay (delete [^`]+)`", str(refused.value))
    assert commands
    assert [main(command.split()) for command in commands] == [0] * len(commands)
    assert client.describe_table("t").items == 40
