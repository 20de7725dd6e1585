"""The parameter server as a process, and the background clients across its deaths."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.processes import processor_s
from tests.support.free_ports import free_address
from tests.support.naming import naming
from tests.support.params_service import METADATA, ServerProcess, local_server, publish, server_process
from tests.support.processes import resident_mib
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import InvalidArgument, ResourceExhausted, Unavailable, Unimplemented
from tidemill.params.client import ParamsClient
from tidemill.params.publisher import ParamsPublisher, StalePublisher
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.v1 import params_pb2_grpc
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.params.watcher import ParamsWatcher
from tidemill.rpc.channel import open_channel
from tidemill.services.paramserver.catalog import Catalog


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process on a free port; a test that lets it use up its grace period fails, for `stop` waits a tenth."""
    with server_process(tmp_path, ["--log.json", "--paramserver.server.grace-s", str(10 * WAIT_S)]) as process:
        yield process


@pytest.fixture(scope="module")
def steady_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server process that the tests only look at."""
    with server_process(tmp_path_factory.mktemp("steady"), ["--log.json"], forked=False) as process:
        yield process


def _full(text: str) -> dict[Precision, bytes]:
    return {Precision.FULL: text.encode()}


def test_sigterm_ends_waiting_calls_and_the_process(server: ServerProcess) -> None:
    """With a fetch and a watch waiting, the process ends well within its grace period, with exit code 0."""
    with ParamsClient(server.address) as client, ParamsWatcher(server.address):
        client.acquire_fencing_token("test", connect_timeout_s=WAIT_S)
        watch = client.watch()
        code, errors = server.stop()
        with pytest.raises(Unavailable):
            next(iter(watch))
    assert code == 0
    events = [json.loads(line) for line in errors.splitlines()]
    assert [event["event"] for event in events] == ["serving", "new publisher", "stopped"]


def test_health_and_metrics_are_served(steady_server: ServerProcess) -> None:
    """Health says SERVING once it is ready; /metrics has the names dashboards need."""
    name = "tidemill.params.v1.ParamService"
    with open_channel(steady_server.address) as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        stub = health_pb2_grpc.HealthStub(channel)
        responses = stub.Watch(request, timeout=WAIT_S, wait_for_ready=True)
        assert health_pb2.HealthCheckResponse.SERVING in (response.status for response in responses)
        responses.cancel()
        assert stub.Check(request, timeout=WAIT_S).status == health_pb2.HealthCheckResponse.SERVING
        address = json.loads(steady_server.line())["metrics"]
        names = set(scrape(address))
    for noun in ("latest_version", "versions", "watchers", "published_total", "corrupt_versions_total"):
        assert f"tidemill_paramserver_{noun}" in names
    assert any(name.startswith('grpc_server_handled_total{grpc_code="OK"') for name in names)


_READER = """
import sys
from pathlib import Path
from tidemill.params.watcher import ParamsWatcher

with ParamsWatcher(sys.argv[1], folder=Path(sys.argv[2])) as watcher:
    params = watcher.wait(float(sys.argv[3]))
    print(params and params.blob.decode())
"""


def test_processes_with_the_folder_mounted_are_sent_nothing(tmp_path: Path) -> None:
    """Reached by an address that others reach, as between containers: the bytes go to the one without a mount alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the system chooses the address that it would send from
        except OSError:
            pytest.skip("this machine has no address besides loopback")
        host = probe.getsockname()[0]
    root, mounted = tmp_path / "root", tmp_path / "mounted"
    address = f"{host}:{free_address().rpartition(':')[2]}"
    server = ServerProcess(root, address, "--run.name", "run", "--log.json", "--paramserver.server.insecure")
    try:
        with ParamsClient(address, reads_files=False) as client:
            token = client.acquire_fencing_token("test", connect_timeout_s=WAIT_S).fencing_token
            client.publish(_full("one"), METADATA, fencing_token=token, base_version=0)
        mounted.symlink_to(root / "run" / "params")
        command = [sys.executable, "-c", _READER, address]
        with ExitStack() as stack:
            readers = []
            for folder in (mounted, mounted, tmp_path / "nothing"):
                reader = subprocess.Popen([*command, str(folder), str(WAIT_S)], stdout=subprocess.PIPE, text=True)
                readers.append(stack.enter_context(reader))
                stack.callback(reader.kill)
            assert [reader.communicate(timeout=2 * WAIT_S)[0] for reader in readers] == ["one\n"] * 3
        samples = scrape(json.loads(server.line())["metrics"])
        assert samples['tidemill_paramserver_fetched_bytes_total{precision="full"}'] == 3
    finally:
        server.close()


def test_folder_in_use_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    """A second server on the same run explains itself and ends."""
    with local_server(tmp_path / "run" / "params"):
        code, errors = ServerProcess(tmp_path, "127.0.0.1:0").wait()
    assert code == 1
    assert errors.startswith("paramserver: another parameter server uses the folder")
    assert len(errors.splitlines()) == 1


def test_idle_server_is_small_and_still(steady_server: ServerProcess) -> None:
    """Idle, with a watcher waiting, it needs under 100 MB and under 2 % of a core."""
    address, pid = steady_server.address, steady_server.pid
    with ParamsWatcher(address), ParamsClient(address) as client:
        client.acquire_fencing_token("test", connect_timeout_s=WAIT_S)
        assert client.fetch(wait_s=0.05) is None  # the first call of its kind costs more
        before = processor_s(pid)
        assert client.fetch(wait_s=10) is None  # ten seconds in which nothing happens: 2 % are 20 ticks of the clock
        assert processor_s(pid) - before <= 10 * 0.02
        assert resident_mib(pid) < 100


def test_publisher_and_watcher_go_on_after_the_server_was_killed(server: ServerProcess) -> None:
    """Both reconnect by themselves; what was offered meanwhile arrives, once."""
    with (
        ParamsPublisher(server.address, name="test", connect_timeout_s=WAIT_S) as publisher,
        ParamsWatcher(server.address) as watcher,
    ):
        publisher.offer(_full("one"), METADATA)
        assert publisher.flush(WAIT_S)
        params = watcher.wait(WAIT_S)
        assert params is not None
        assert params.blob == b"one"
        server.close()
        publisher.offer(_full("two"), METADATA)
        assert not publisher.flush(0.3)
        assert watcher.newest() == params
        server.start()
        assert publisher.flush(WAIT_S)
        assert publisher.version == 2
        params = watcher.wait(WAIT_S, newer_than=1)
        assert params is not None
        assert (params.number, params.blob, params.version.fencing_token) == (2, b"two", publisher.fencing_token)


def test_publisher_without_a_server_gives_up_in_time() -> None:
    """The bound on the wait holds."""
    began_s = time.monotonic()
    with pytest.raises(Unavailable):
        ParamsPublisher("127.0.0.1:9", name="test", connect_timeout_s=0.2)
    assert time.monotonic() - began_s < WAIT_S


def test_superseded_publisher_raises_in_its_owner(tmp_path: Path) -> None:
    """The older of two publishers learns it with its next publish, for good; the newer continues."""
    with (
        local_server(tmp_path) as server,
        ParamsPublisher(server.address, name="old") as old,
        ParamsPublisher(server.address, name="new") as new,
    ):
        old.offer(_full("old"), METADATA)
        with pytest.raises(StalePublisher, match="superseded"):
            old.flush(WAIT_S)
        with pytest.raises(StalePublisher):
            old.offer(_full("old"), METADATA)
        new.offer(_full("new"), METADATA)
        assert new.flush(WAIT_S)
        with pytest.raises(StalePublisher):
            old.flush(0)
        assert [version.fencing_token for version in server.store.catalog.versions.values()] == [new.fencing_token]


def test_superseded_publisher_is_told_apart_also_behind_the_newest_version(tmp_path: Path) -> None:
    """An old publisher whose base is outdated too does not take over the newer one's place."""
    with (
        local_server(tmp_path) as server,
        ParamsPublisher(server.address, name="old") as old,
        ParamsPublisher(server.address, name="new") as new,
    ):
        new.offer(_full("new"), METADATA)
        assert new.flush(WAIT_S)
        old.offer(_full("old"), METADATA)
        with pytest.raises(StalePublisher):
            old.flush(WAIT_S)
        assert list(server.store.catalog.versions) == [1]


def test_publisher_goes_on_when_the_server_lost_its_newest_version(tmp_path: Path) -> None:
    """After corruption on the server's disk the base is corrected, and numbers still grow."""
    folder = tmp_path / "run" / "params"
    with server_process(tmp_path) as server:
        with ParamsPublisher(server.address, name="test", connect_timeout_s=WAIT_S) as publisher:
            for text in ("one", "two"):
                publisher.offer(_full(text), METADATA)
                assert publisher.flush(WAIT_S)
            server.close()
            (folder / "0000000002.full.safetensors").write_bytes(b"t_o")
            server.start()
            publisher.offer(_full("three"), METADATA)
            assert publisher.flush(WAIT_S)
            assert publisher.version == 3
        with ParamsClient(server.address) as client:
            assert [(v.version, v.base_version) for v in client.list_versions().versions] == [(1, 0), (3, 1)]


@pytest.mark.parametrize("is_moved", [False, True])
def test_server_whose_folder_vanishes_ends_with_the_reason(tmp_path: Path, is_moved: bool) -> None:
    """At the next publish, which then succeeds at the restarted server, above the number that it had."""
    folder = tmp_path / "run" / "params"
    with (
        server_process(tmp_path) as server,
        ParamsPublisher(server.address, name="test", connect_timeout_s=WAIT_S) as publisher,
    ):
        publisher.offer(_full("one"), METADATA)
        assert publisher.flush(WAIT_S)
        if is_moved:
            folder.rename(tmp_path / "elsewhere")
            folder.mkdir()  # and another is in its place
        else:
            shutil.rmtree(folder)
        publisher.offer(_full("two"), METADATA)
        code, said = server.wait()
        assert (code, f"the folder {folder} was removed, moved or replaced" in said.splitlines()[-1]) == (1, True)
        assert "internal error" not in said
        server.start()
        assert publisher.flush(WAIT_S)
        assert publisher.version == 2


def _lose_nothing(folder: Path) -> None:
    pass


def _damage(precision: str, folder: Path) -> None:
    (folder / f"0000000002.{precision}.safetensors").write_bytes(b"t_o")


def _set_back(folder: Path) -> None:
    """Put the files in the state before version 2."""
    for path in folder.glob("0000000002.*"):
        path.unlink()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "lose, version",
    [(_lose_nothing, 2), (partial(_damage, "full"), 3), (partial(_damage, "half"), 3), (_set_back, 3)],
)
def test_lost_version_is_published_again(
    tmp_path: Path, lose: Callable[[Path], None], version: int, restarts: bool
) -> None:
    """Under a new number and with the same bytes, for actors that wait for it; one that is served stays."""
    address, blobs = free_address(), {Precision.FULL: b"two", Precision.HALF: b"2"}
    with ExitStack() as stack, ExitStack() as first:
        first.enter_context(local_server(tmp_path, address=address))
        publisher = stack.enter_context(ParamsPublisher(address, name="test"))
        for each in (_full("one"), blobs):
            publisher.offer(each, METADATA)
            assert publisher.flush(WAIT_S)
        lose(tmp_path)
        if restarts:
            first.close()
            first.enter_context(local_server(tmp_path, address=address))
            with ParamsClient(address) as client:
                client.list_versions()  # it is there
        publisher.renew()
        assert publisher.flush(WAIT_S)
        assert publisher.version == version
        with ParamsClient(address) as client:
            for precision, blob in blobs.items():
                params = client.fetch(precision=precision)
                assert params is not None
                assert (params.number, params.blob, params.version.metadata) == (version, blob, METADATA)


def test_newest_offer_replaces_those_that_wait(tmp_path: Path) -> None:
    """Offers made while the server is away never pile up: the last one is what is published."""
    with local_server(tmp_path) as server:
        publisher = ParamsPublisher(server.address, name="test")
        publisher.offer(_full("first"), METADATA)
        assert publisher.flush(WAIT_S)
        for i in range(100):
            publisher.offer(_full(f"{i}"), ParamsMetadata(learner_steps=i))
        assert publisher.flush(WAIT_S)
        publisher.close()
        newest = server.store.catalog.newest
        assert newest is not None
        assert newest.metadata.learner_steps == 99
        assert len(server.store.catalog.versions) == 101 - publisher.replaced
        assert publisher.replaced > 0


def test_bytes_are_made_for_offers_that_are_sent(tmp_path: Path) -> None:
    """While the first are being made nobody waits, and of five offers meanwhile only the last one's are made."""
    entered, release = threading.Event(), threading.Event()
    made: list[int] = []

    def slow() -> dict[Precision, bytes]:
        entered.set()
        assert release.wait(WAIT_S)
        return _full("slow")

    def made_of(number: int) -> dict[Precision, bytes]:
        made.append(number)
        return _full(f"{number}")

    with local_server(tmp_path) as server, ParamsPublisher(server.address, name="test") as publisher:
        publisher.offer(slow, METADATA)
        assert entered.wait(WAIT_S)
        assert publisher.version == 0
        for number in range(5):
            publisher.offer(partial(made_of, number), METADATA)
        release.set()
        assert publisher.flush(WAIT_S)
        assert (made, publisher.replaced, publisher.version) == ([4], 4, 2)


def test_fault_while_making_bytes_is_raised_in_the_owner(tmp_path: Path) -> None:
    """Parameters that cannot be serialised do not vanish in the background; no later offer is taken."""

    def broken() -> dict[Precision, bytes]:
        raise TypeError("cannot be serialised")

    with local_server(tmp_path) as server, ParamsPublisher(server.address, name="test") as publisher:
        publisher.offer(broken, METADATA)
        for call in (partial(publisher.flush, WAIT_S), publisher.check, partial(publisher.offer, broken, METADATA)):
            with pytest.raises(TypeError, match="cannot be serialised"):
                call()


def test_refused_offer_is_raised_in_the_owner(tmp_path: Path) -> None:
    """An offer without full precision can never be published."""
    with local_server(tmp_path) as server, ParamsPublisher(server.address, name="test") as publisher:
        publisher.offer({Precision.HALF: b"half"}, METADATA)
        with pytest.raises(InvalidArgument, match=naming("encodings")):
            publisher.flush(WAIT_S)


def test_offer_that_is_too_large_is_raised_in_the_owner(tmp_path: Path) -> None:
    """The next parameters would be as large: to repeat it would stall the run."""
    with (
        local_server(tmp_path, max_blob_bytes=3) as server,
        ParamsPublisher(server.address, name="test") as publisher,
    ):
        publisher.offer(_full("four"), METADATA)
        with pytest.raises(ResourceExhausted, match=naming("paramserver.max_blob_bytes 3")):
            publisher.flush(WAIT_S)


@pytest.mark.parametrize("later", ["lost", "lost again"])
def test_server_that_lost_its_folder_continues_above_the_publishers_version(tmp_path: Path, later: str) -> None:
    """A watcher that waits for a newer version than one of the lost folder gets the next."""
    address = free_address()
    with ExitStack() as stack:
        with local_server(tmp_path / "lost", address=address):
            known = {"last_known_token": 6, "last_known_version": 812}
            publisher = stack.enter_context(ParamsPublisher(address, name="test", **known))
            watcher = stack.enter_context(ParamsWatcher(address, newer_than=812))
        with local_server(tmp_path / later, address=address):
            publisher.offer(_full("next"), METADATA)
            assert publisher.flush(WAIT_S)
            params = watcher.wait(WAIT_S)
            assert (publisher.version, params and params.number) == (813, 813)


@pytest.mark.parametrize("kept", [0, 1])
def test_publisher_continues_above_its_version_when_the_server_goes_back(tmp_path: Path, kept: int) -> None:
    """A watcher gets the next number, with the same token, though the folder is lost or that of an old backup."""
    address = free_address()
    with ExitStack() as stack:
        with local_server(tmp_path / "now", address=address):
            publisher = stack.enter_context(ParamsPublisher(address, name="test", last_known_token=6))
            watcher = stack.enter_context(ParamsWatcher(address, newer_than=3))
            for number in range(3):
                if number == kept:
                    shutil.copytree(tmp_path / "now", tmp_path / "backup")
                publisher.offer(_full(f"{number}"), METADATA)
                assert publisher.flush(WAIT_S)
        with local_server(tmp_path / ("backup" if kept else "lost"), address=address) as server:
            publisher.offer(_full("next"), METADATA)
            assert publisher.flush(WAIT_S)
            params = watcher.wait(WAIT_S)
            assert params is not None
            assert (publisher.version, params.number, params.version.fencing_token) == (4, 4, 7)
            assert list(server.store.catalog.versions) == [*range(1, kept + 1), 4]


@pytest.mark.parametrize("before", [1, 3])
def test_watcher_takes_the_versions_of_another_run_at_its_address(tmp_path: Path, before: int) -> None:
    """They are numbered from 1 again, and created later than those that it has; those of a backup are not."""
    address = free_address()
    with ExitStack() as stack:
        watcher, client = stack.enter_context(ParamsWatcher(address)), stack.enter_context(ParamsClient(address))
        with local_server(tmp_path / "one", address=address):
            for number in range(1, before + 1):
                publish(client, f"{number}".encode())
                if number == 1:
                    shutil.copytree(tmp_path / "one", tmp_path / "backup")
            params = watcher.wait(WAIT_S, newer_than=before - 1)
            assert params is not None
        with local_server(tmp_path / "backup", address=address):
            client.acquire_fencing_token("test", connect_timeout_s=WAIT_S)
            assert client.fetch(newer_than=params.version) is None
        with local_server(tmp_path / "two", address=address):
            publish(client, b"of another run")
            wait_until(lambda: (newest := watcher.newest()) and newest.blob == b"of another run", "it is fetched")


def test_publisher_names_a_server_that_cannot_give_its_token_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is older than the publisher gives it a new token: no other publisher has taken over."""
    take = Catalog.with_next_token
    monkeypatch.setattr(Catalog, "with_next_token", lambda catalog, *known: take(catalog, *known[:2]))
    address = free_address()
    with ExitStack() as stack:
        with local_server(tmp_path / "now", address=address):
            publisher = stack.enter_context(ParamsPublisher(address, name="test", last_known_token=6))
        with local_server(tmp_path / "lost", address=address):
            publisher.offer(_full("next"), METADATA)
            with pytest.raises(Unimplemented, match=naming("held_token update")):
                publisher.flush(WAIT_S)


@pytest.mark.parametrize("first", ["old", "new"])
def test_newer_publisher_stays_the_publisher_of_a_server_that_lost_its_folder(tmp_path: Path, first: str) -> None:
    """Whichever of the two publishes first, the older one ends and the newer continues with its token."""
    address = free_address()
    with ExitStack() as stack:
        with local_server(tmp_path / "now", address=address):
            old = stack.enter_context(ParamsPublisher(address, name="old"))
            old.offer(_full("1"), METADATA)
            assert old.flush(WAIT_S)
            new = stack.enter_context(ParamsPublisher(address, name="new"))
        with local_server(tmp_path / "lost", address=address) as server:
            if first == "old":
                old.offer(_full("old"), METADATA)
                assert old.flush(WAIT_S)
            new.offer(_full("new"), METADATA)
            assert new.flush(WAIT_S)
            old.offer(_full("late"), METADATA)
            with pytest.raises(StalePublisher, match=naming("fencing token 1 superseded 2")):
                old.flush(WAIT_S)
            new.offer(_full("newer"), METADATA)
            assert new.flush(WAIT_S)
            assert server.store.catalog.fencing_token == new.fencing_token == 2


def test_one_of_two_publishers_ends_to_whom_a_server_without_a_memory_gave_the_same_token(tmp_path: Path) -> None:
    """One that outlived its run's folder and one of the run begun there do not take turns."""
    address = free_address()
    with ExitStack() as stack:
        with local_server(tmp_path / "now", address=address):
            old = stack.enter_context(ParamsPublisher(address, name="old"))
            for number in range(2):
                old.offer(_full(f"{number}"), METADATA)
                assert old.flush(WAIT_S)
        with local_server(tmp_path / "lost", address=address):
            new = stack.enter_context(ParamsPublisher(address, name="new"))
            new.offer(_full("new"), METADATA)
            assert new.flush(WAIT_S)
            old.offer(_full("old"), METADATA)
            assert old.flush(WAIT_S)
            new.offer(_full("newer"), METADATA)
            with pytest.raises(StalePublisher, match=naming("base_version 1 3")):
                new.flush(WAIT_S)


def test_watcher_keeps_only_the_newest(tmp_path: Path) -> None:
    """It takes the wanted precision, returns the same object until there is a newer one, and never blocks."""
    with (
        local_server(tmp_path) as server,
        ParamsPublisher(server.address, name="test") as publisher,
        ParamsWatcher(server.address, precision=Precision.HALF) as watcher,
    ):
        assert watcher.newest() is None
        assert watcher.wait(0.05) is None
        for i in range(1, 4):
            publisher.offer({**_full(f"full {i}"), Precision.HALF: b"half %d" % i}, METADATA)
            assert publisher.flush(WAIT_S)
            params = watcher.wait(WAIT_S, newer_than=i - 1)
            assert params is not None
            assert (params.number, params.blob, params.precision) == (i, b"half %d" % i, Precision.HALF)
            assert watcher.newest() is params


def test_watcher_of_a_tag_waits_until_it_is_set(tmp_path: Path) -> None:
    """A tag that does not exist yet is not an error; a malformed one is."""
    with local_server(tmp_path) as server, ParamsPublisher(server.address, name="test") as publisher:
        with pytest.raises(InvalidArgument, match=naming("tag 'Best'")):
            ParamsWatcher(server.address, tag="Best")
        with ParamsWatcher(server.address, tag="best", precision=Precision.FULL) as watcher:
            for number in ("one", "two", "three"):
                publisher.offer(_full(number), METADATA)
                assert publisher.flush(WAIT_S)
            assert watcher.newest() is None
            with ParamsClient(server.address) as client:
                client.set_tag("best", 2)  # neither the newest nor the first: nothing else can have been taken for it
            params = watcher.wait(WAIT_S)
            assert params is not None
            assert params.blob == b"two"


def test_closing_does_not_wait_for_the_server(tmp_path: Path) -> None:
    """A watcher that waits and a publisher that retries have ended when `close` returns; closing twice is fine."""
    before = set(threading.enumerate())
    with local_server(tmp_path) as server:
        publisher = ParamsPublisher(server.address, name="test")
        watcher = ParamsWatcher(server.address)
    publisher.offer(_full("never"), METADATA)
    for _ in range(2):
        watcher.close()
        publisher.close()
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert not names & {"params-watcher", "params-publisher"}  # `close` would have given up waiting for them
    assert watcher.wait(WAIT_S) is None
    assert not publisher.flush(WAIT_S)


def test_fetches_that_stall_over_many_versions_stay_within_the_budget(tmp_path: Path) -> None:
    """40 readers of 40 versions that read nothing cost about `max_fetch_bytes`, and the newest is served."""
    budget_mib, size = 32, 8 * 2**20
    with (
        server_process(tmp_path, ["--paramserver.max-fetch-bytes", str(budget_mib * 2**20)], forked=False) as server,
        ParamsClient(server.address) as client,
        ExitStack() as stack,
    ):
        fencing_token = client.acquire_fencing_token("test", connect_timeout_s=WAIT_S).fencing_token
        for number in range(44):
            if number == 4:
                before_mib = resident_mib(server.pid)  # with the newest version and what publishing takes
            blobs = {Precision.FULL: number.to_bytes(1, "little") * size}
            client.publish(blobs, METADATA, fencing_token=fencing_token, base_version=number)
            if number < 4:
                continue
            own = grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
            stack.callback(own.close)
            stalled = params_pb2_grpc.ParamServiceStub(own).Fetch(pb.FetchRequest(tag="latest"))
            stack.callback(stalled.cancel)
            if number < 12:
                next(stalled)  # its header: it is being sent
        assert resident_mib(server.pid) - before_mib < 2 * budget_mib  # twice: the allocator keeps as much
        stack.close()
        newest = client.fetch()
        assert newest is not None
        assert newest.blob == (43).to_bytes(1, "little") * size
