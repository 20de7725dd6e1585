"""The status page of a run: what it serves, and to whom."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import naming
from tests.support.waiting import WAIT_S
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.config.services import LauncherSettings
from tidemill.errors import ConfigError, InvalidArgument, Unavailable
from tidemill.learner.status import POLICY_LAG, LearnerState, LearnerStatus
from tidemill.scores import Score
from tidemill.services.launcher.page.run_document import RunDocument, last_lines, with_status_page
from tidemill.services.launcher.page.server import MAX_CONNECTIONS, StatusPage
from tidemill.services.launcher.run.folder import RunFolder
from tidemill.services.launcher.supervise.supervisor import Phase
from tidemill.services.launcher.view.status import ClusterStatus, ProcessRow
from tidemill.services.launcher.view.terminal import PlainView

_READ_S = 0.5
_VIDEO = bytes(range(256)) * 40


def _control(verb: str) -> str:
    if verb == "stop":
        raise Unavailable("the learner does not answer")
    if verb != "pause":
        raise InvalidArgument(f"unknown verb {verb!r}")
    return "paused"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[StatusPage]:
    """A page of a folder with a video and a secret beside it."""
    (tmp_path / "best.mp4").write_bytes(_VIDEO)
    (tmp_path / "secret").write_text("secret")
    files = {
        "/video.mp4": (tmp_path / "best.mp4", "video/mp4"),
        "/settings": (tmp_path / "config.yaml", "text/plain; charset=utf-8"),
    }
    served = StatusPage(lambda: {"name": "small"}, files, _control, read_s=_READ_S)
    yield served
    served.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_page_for_other_machines_is_reached_by_both_protocols() -> None:
    """As a container's port is published on a network of either."""
    served = StatusPage(lambda: {"name": "small"}, {}, _control, host="0.0.0.0", read_s=_READ_S)
    try:
        for host in ("127.0.0.1", "::1"):
            connection = HTTPConnection(host, served.port, timeout=20)
            connection.request("GET", "/", headers={"Host": f"localhost:{served.port}"})
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        served.close()


def _ask(
    page: StatusPage, method: str, path: str, headers: dict[str, str] | None = None, body: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, dict(response.getheaders()), content


def _press(page: StatusPage, verb: str = "pause", **changed: str) -> tuple[int, dict[str, Any]]:
    """Press a button as the page does, except for the headers that are given."""
    headers = {
        "Origin": f"http://127.0.0.1:{page.port}",
        "Content-Type": "application/json",
        "X-Tidemill-Token": page.token,
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    present = {name: value for name, value in headers.items() if value}
    status, _, content = _ask(page, "POST", "/ctl", present, json.dumps({"verb": verb}))
    return status, json.loads(content)


def test_page_is_one_file_that_asks_nobody_else(page: StatusPage) -> None:
    """It names no other address, has no inline handler nor style, and a policy that would not allow them."""
    status, headers, content = _ask(page, "GET", "/")
    text = content.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"<[^>]*\s(on\w+|style)=", text)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("path", ["/", "/status.json", "/nothing", "/video.mp4"])
def test_every_answer_keeps_other_sites_out(page: StatusPage, path: str) -> None:
    """Policy, no sniffing, no referrer, no sharing across origins, nothing kept; no CORS header at all."""
    _, headers, _ = _ask(page, "GET", path)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert not [name for name in headers if name.startswith("Access-Control")]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", "localhost:x"]
)
def test_foreign_host_is_refused(page: StatusPage, host: str) -> None:
    """A name that was bound to this machine later (DNS rebinding) gets nothing."""
    status, _, content = _ask(page, "GET", "/status.json", {"Host": host})
    assert (status, b"small" in content) == (403, False)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_page_is_served_through_a_tunnel(page: StatusPage, host: str) -> None:
    """This machine's names, with the port of `ssh -L`, are not foreign."""
    assert _ask(page, "GET", "/status.json", {"Host": host})[0] == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_data_is_refused_to_a_foreign_origin(page: StatusPage, headers: dict[str, str]) -> None:
    """Also to one on this machine: another port is another origin."""
    assert _ask(page, "GET", "/status.json", headers)[0] == 403
    assert _ask(page, "GET", "/status.json", {"Origin": f"http://127.0.0.1:{page.port + 1}"})[0] == 403


def test_button_without_an_origin_is_told_which_one_to_send(page: StatusPage) -> None:
    """Such as of curl; no origin was refused, since none was named."""
    status, answer = _press(page, Origin="")
    assert status == 403
    assert f"Origin: http://127.0.0.1:{page.port}" in answer["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/%2e%2e/secret",
        "/secret",
        "//secret",
        "/video.mp4/../secret",
        "/video.mp4?file=secret",
        "/settings",
    ],
)
def test_nothing_but_the_listed_files_is_served(page: StatusPage, path: str) -> None:
    """No path of a URL reaches the folder; a listed file that is not there yet is 404 too."""
    status, _, content = _ask(page, "GET", path)
    assert (status, b"secret" in content) == (404, False)


def test_buttons_work_with_the_token() -> None:
    """They carry out the verb and report what it did."""
    done: list[str] = []

    def control(verb: str) -> str:
        done.append(verb)
        return f"{verb} done"

    page = StatusPage(dict, {}, control, read_s=_READ_S)
    assert _press(page, "checkpoint") == (200, {"message": "checkpoint done"})
    assert done == ["checkpoint"]
    page.close()


@pytest.mark.parametrize(
    "changed, status",
    [
        ({"X_Tidemill_Token": "wrong"}, 403),
        ({"X_Tidemill_Token": ""}, 403),
        ({"X_Tidemill_Token": "\u00e9"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": ""}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Length": "9999"}, 413),
        ({"Content_Length": "-1"}, 413),
    ],
)
def test_button_is_refused(page: StatusPage, changed: dict[str, str], status: int) -> None:
    """A wrong or missing token, another origin, a form's content type, a body that is too large."""
    assert _press(page, **changed)[0] == status


def test_button_reports_what_failed(page: StatusPage) -> None:
    """The learner's refusal and a verb there is not are different errors, both in words."""
    assert _press(page, "stop") == (502, {"error": "the learner does not answer"})
    assert _press(page, "explode") == (400, {"error": "unknown verb 'explode'"})
    headers = {"Origin": f"http://127.0.0.1:{page.port}", "Content-Type": "application/json"}
    assert _ask(page, "POST", "/ctl", {**headers, "X-Tidemill-Token": page.token}, "[1]")[0] == 400
    assert _ask(page, "DELETE", "/")[0] == 501


def test_video_is_served_by_ranges(page: StatusPage) -> None:
    """As players ask for it; a range beyond its end, or that ends before it starts, is refused."""
    assert _ask(page, "GET", "/video.mp4")[2] == _VIDEO
    status, headers, content = _ask(page, "GET", "/video.mp4", {"Range": "bytes=100-199"})
    assert (status, content) == (206, _VIDEO[100:200])
    assert headers["Content-Range"] == f"bytes 100-199/{len(_VIDEO)}"
    assert _ask(page, "GET", "/video.mp4", {"Range": "bytes=10200-"})[2] == _VIDEO[10200:]
    for wrong in ("bytes=99999-", "bytes=10-5"):
        status, headers, _ = _ask(page, "GET", "/video.mp4", {"Range": wrong})
        assert (status, "Content-Range" in headers) == (416, False), wrong


def _until_closed(client: socket.socket) -> bytes:
    """Return the bytes received until the other side closes, properly or by a reset."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while block := client.recv(65536):
            content += block
    return content


def _drip(client: socket.socket, request: bytes) -> None:
    """Send a byte now and then."""
    for byte in request:
        client.sendall(bytes([byte]))
        time.sleep(_READ_S / 10)


@pytest.mark.parametrize("path", ["/", "/status.json", "/video.mp4", "/none"])
def test_head_is_answered_as_get_without_a_body(page: StatusPage, path: str) -> None:
    """As `curl -I` asks."""
    status, headers, _ = _ask(page, "GET", path)
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as client:
        client.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = _until_closed(client)
    assert answer.startswith(f"HTTP/1.0 {status} ".encode())
    assert f"Content-Length: {headers['Content-Length']}\r\n".encode() in answer
    assert answer.endswith(b"\r\n\r\n")


def test_slow_client_is_cut_off(page: StatusPage) -> None:
    """A byte now and then does not keep a connection open beyond the bound."""
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as client, pytest.raises(ConnectionError):
        _drip(client, b"GET / HTTP/1.1\r\nHost: " + b"x" * 1_000)
    assert time.monotonic() - started < 40 * _READ_S


def test_large_request_is_cut_off(page: StatusPage) -> None:
    """A request's lines have 16 KiB together."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n")
        assert _until_closed(client) == b""


def test_connections_are_bounded() -> None:
    """Beyond the bound one is closed at once."""
    page = StatusPage(dict, {}, _control, read_s=10 * WAIT_S)
    with contextlib.ExitStack() as stack:
        stack.callback(page.close)
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", page.port), timeout=WAIT_S))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), timeout=WAIT_S))
        assert client.recv(1) == b""


def test_time_limit_of_connections_makes_room_again(page: StatusPage) -> None:
    """As many as the bound allows, all idle, are cut off, and the next request is answered."""
    for each in [socket.create_connection(("127.0.0.1", page.port), timeout=20) for _ in range(MAX_CONNECTIONS)]:
        assert each.recv(1) == b""
        each.close()
    end_s = time.monotonic() + 20
    while True:
        try:
            assert _ask(page, "GET", "/status.json")[0] == 200
            break
        except (ConnectionError, OSError):
            assert time.monotonic() < end_s


def test_port_that_is_taken_is_an_error(page: StatusPage) -> None:
    """It names the setting and how to do without the page."""
    with pytest.raises(ConfigError, match=naming("launcher.status_page_port --launcher.no-status-page")):
        StatusPage(dict, {}, _control, port=page.port)


_SCORE = Score(61.0, 5_000, 20_000, 50, 25, 123.45, 10.5, 80.0, 140.0, 120.0, 200.0)
_LEARNER = LearnerStatus(
    LearnerState.TRAINING, 6_000, 24_000, steps_per_s=312.0, metrics={POLICY_LAG: 2.5}, table_items=23_900
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run, locked."""
    with RunFolder.create(RunConfig(run=RunSettings(name="small", root=str(tmp_path))), fresh=False) as made:
        yield made.path


def test_document_has_a_log_of_every_kind_of_process(folder: Path) -> None:
    """Of many actors some are left out; an order that begins with them changes nothing."""
    names = [*(f"actor-{number}" for number in range(40)), "evaluator", "learner", "replay-0", "replay-1"]
    document = RunDocument(RunConfig(), folder, PlainView(RunSettings(), io.StringIO()), lambda name: [name])
    rows = [ProcessRow(name, Phase.SERVING, None, 0, "", None) for name in names]
    more = ProcessRow("12 more", Phase.PENDING, None, 0, "not asked", None, is_process=False)
    document.show(ClusterStatus(1.0, (*rows, more)))
    assert list(document.read()["logs"]) == [*names[:12], *names[40:]]


def test_document_holds_what_the_page_shows(folder: Path) -> None:
    """Rates, replay ratio, policy lag, the curve, processes, events and logs; whatever JSON cannot hold is null."""
    (folder / "logs" / "learner.log").write_text("first\nlast\n")
    view = io.StringIO()
    limits = RunSettings(name="small", max_env_steps=100_000)
    document = RunDocument(RunConfig(run=limits), folder, PlainView(limits, view))
    document.event("learner is ready")
    worst = dataclasses.replace(_SCORE, mean=float("nan"))
    rows = (ProcessRow("learner", Phase.BACKOFF, None, 2, "was killed by signal 9", None),)
    document.show(ClusterStatus(72.0, rows, _LEARNER, 1_234.0, _SCORE, _SCORE, _SCORE, (worst, _SCORE)))
    found = json.loads(json.dumps(document.read(), allow_nan=False))
    assert (found["env_steps_per_s"], found["replay_ratio"], found["policy_lag"]) == (1_234.0, 0.25, 2.5)
    assert found["scores"] == [[20_000, None, 10.5, 61.0], [20_000, 123.45, 10.5, 61.0]]
    assert found["processes"][0]["state"] == "restarting"
    assert found["processes"][0]["restarts"] == 2
    assert found["events"] == ["0:00  learner is ready"]
    assert found["logs"] == {"learner": ["first", "last"]}
    assert (found["fraction"], found["video"]) == (0.24, 0)
    assert "learner is ready" in view.getvalue()


def test_document_of_a_run_that_has_ended(folder: Path) -> None:
    """It says how, instead of how far the run is from a limit that it never reached."""
    limits = RunSettings(name="small", max_env_steps=100_000)
    document = RunDocument(RunConfig(run=limits), folder, PlainView(limits, io.StringIO()))
    end = "target 200 reached, mean return 221.0, confirmed 213.3, version 226"
    learner = LearnerStatus(LearnerState.ENDED, learner_steps=600, env_steps=42_000, end=end)
    document.show(ClusterStatus(0.0, (), learner, newest=_SCORE, best=_SCORE, first=_SCORE, scores=(_SCORE,)))
    found = document.read()
    assert (found["state"], found["end"], found["env_steps"]) == ("ended", end, 42_000)
    assert (found["fraction"], found["left"], found["waiting"]) == (None, "", "the run has ended")


def test_document_before_the_first_answer(folder: Path) -> None:
    """A page that is opened at once shows that it waits."""
    document = RunDocument(RunConfig(), folder, PlainView(RunSettings(), io.StringIO()))
    assert document.read()["waiting"] == "waiting for the learner to start"
    assert document.read()["policy_lag"] is None


@pytest.mark.parametrize("count, most", [(0, 0), (1, 1), (500, 500), (501, 500), (1_000, 500), (1_201, 500)])
def test_long_curve_is_thinned_but_keeps_its_first_best_and_newest_point(folder: Path, count: int, most: int) -> None:
    """The page says from where to where it goes and how high it got, and how many evaluations there were."""
    document = RunDocument(RunConfig(), folder, PlainView(RunSettings(), io.StringIO()))
    for best in (1, 2, 250) if count > 250 else (0,):
        scores = tuple(
            dataclasses.replace(_SCORE, env_steps=step, mean=9.0 if step == best else 1.0) for step in range(count)
        )
        document.show(ClusterStatus(1.0, (), scores=scores))
        shown = document.read()["scores"]
        steps = [point[0] for point in shown]
        assert document.read()["evaluations"] == count
        assert len(shown) <= most
        assert steps == sorted({*steps} | ({0, best, count - 1} if count else set()))


def test_log_lines_are_bounded(tmp_path: Path) -> None:
    """The last ones, cut, whatever bytes they hold."""
    file = tmp_path / "a.log"
    assert last_lines(file) == []
    file.write_bytes(b"\xff\n" * 50_000 + b"x" * 5_000 + b"\nend\n")
    lines = last_lines(file)
    assert lines[-1] == "end"
    assert len(lines) == 12
    assert max(map(len, lines)) == 400


def test_page_can_be_switched_off(folder: Path) -> None:
    """Then the view is the terminal's alone; otherwise the address is printed once, and nothing listens afterwards."""
    view = PlainView(RunSettings(), stream := io.StringIO())
    with with_status_page(RunConfig(launcher=LauncherSettings(status_page=False)), folder, view) as reported:
        assert reported is view
    assert stream.getvalue() == ""
    with with_status_page(RunConfig(), folder, view) as reported:
        port = int(re.findall(r"http://127\.0\.0\.1:(\d+)/#[\w-]{22}\n", stream.getvalue())[0])
        assert reported is not view
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
