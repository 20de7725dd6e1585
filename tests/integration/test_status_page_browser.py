"""The status page in a real browser: phone and desktop, light and dark, by keyboard, and closed to other sites."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.browser import Browser, running_browser
from tests.support.waiting import wait_until
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.learner.status import POLICY_LAG, LearnerState, LearnerStatus
from tidemill.scores import Score
from tidemill.services.launcher.page.run_document import RunDocument
from tidemill.services.launcher.page.server import StatusPage
from tidemill.services.launcher.supervise.supervisor import Phase
from tidemill.services.launcher.view.status import ClusterStatus, ProcessRow
from tidemill.services.launcher.view.terminal import PlainView

_SIZES = {"phone": (375, 812), "desktop": (1280, 900)}
_LONG = "no parameters were published for 31 s and 250 updates: actors act by version 10; see paramserver.log, " * 3

_CONTRAST = """
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const channel = (value) => value <= 10.31 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const colour = numbers(getComputedStyle(each).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
};
const poor = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility() || element.disabled) continue;
  const style = getComputedStyle(element);
  const text = numbers(element instanceof SVGElement ? style.fill : style.color);
  const [high, low] = [light(text), light(behind(element))].sort((a, b) => b - a);
  if ((high + 0.05) / (low + 0.05) < 4.5) poor.push(element.textContent);
}
return poor;
"""

_SMALL = """
return [...document.querySelectorAll("button, select")].filter((each) => each.getBoundingClientRect().height < 44)
  .map((each) => each.textContent);
"""

_FOREIGN_PAGE = """<!doctype html><title>foreign</title><script>
window.results = {};
const ask = (name, url, options) => fetch(url, options).then(
  async (answer) => { results[name] = answer.type === "opaque" ? "opaque" : await answer.text(); },
  () => { results[name] = "refused"; });
window.tried = (page) => Promise.all([
  ask("read", page + "status.json"),
  ask("press", page + "ctl", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"verb":"stop"}'}),
  ask("form", page + "ctl", {method: "POST", mode: "no-cors", body: '{"verb":"stop"}'}),
]).then(() => results);
</script>"""


@pytest.fixture(name="browser", scope="module")
def _browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(name="pressed")
def _pressed() -> list[str]:
    """What the buttons asked for."""
    return []


@pytest.fixture(name="page")
def _page(tmp_path: Path, pressed: list[str]) -> Iterator[StatusPage]:
    """The page of a run with all that it can show: curve, target, limit, warning, a restarted process, logs, video."""
    run = RunSettings(name="small", root=str(tmp_path), target_return=200.0, max_env_steps=100_000)
    folder = tmp_path / "small"
    for name, content in (
        ("logs/learner.log", "one line\n" + "a_very_long_word_" * 40),
        ("logs/actor-0.log", "actor's line"),
        ("config.yaml", "agent: {gamma: 0.99}"),
        ("videos/best.mp4", "a video"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    document = RunDocument(RunConfig(run=run), folder, PlainView(run, io.StringIO()))
    document.event("learner is ready")
    document.show(_status())

    def control(verb: str) -> str:
        pressed.append(verb)
        return f"{verb} done"

    files = {
        "/video.mp4": (folder / "videos/best.mp4", "video/mp4"),
        "/settings": (folder / "config.yaml", "text/plain"),
    }
    page = StatusPage(document.read, files, control)
    yield page
    page.close()


def _status() -> ClusterStatus:
    learner = LearnerStatus(
        LearnerState.TRAINING, 6_000, 24_000, steps_per_s=312.0, metrics={POLICY_LAG: 2.5}, table_items=23_900
    )
    score = Score(61.0, 5_000, 20_000, 50, 25, 123.45, 10.5, 80.0, 140.0, 120.0, 200.0)
    scores = tuple(dataclasses.replace(score, env_steps=2_000 * i, mean=10.0 * i, wall_s=9.0 * i) for i in range(1, 9))
    rows = (
        ProcessRow("learner", Phase.SERVING, 12, 0, "", None),
        ProcessRow("actor-0", Phase.BACKOFF, None, 2, "was killed by signal 9", None),
    )
    return ClusterStatus(
        72.0, rows, learner, 1_234.0, scores[-1], scores[-1], scores[0], scores, warnings=(_LONG,), learner_answers=True
    )


def _open(browser: Browser, url: str) -> None:
    """Open the page and wait until it shows the run."""
    browser.complaints()  # those of other tests
    browser.open(url)
    script = "return document.getElementById('processes').rows.length === 2"
    wait_until(lambda: bool(browser.run(script)), "the page's numbers")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", _SIZES)
def test_page_is_readable_everywhere(browser: Browser, page: StatusPage, size: str, *, dark: bool) -> None:
    """It fits the width, in colours of the system whose texts have a contrast of 4.5; fingers hit its controls."""
    browser.show_as(*_SIZES[size], dark=dark)
    _open(browser, page.url)
    wide, width = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= width
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(16, 22, 28)" if dark else "rgb(244, 246, 248)"
    )
    assert browser.run(_CONTRAST) == []
    assert browser.run(_SMALL) == []
    text = str(browser.run("return document.body.innerText"))
    for shown in ("small: sac on", "1,234", "24% of the nearest limit", "was killed by signal 9", "learner is ready"):
        assert shown in text
    assert (
        browser.run("return document.querySelector('#curve .mean').getBoundingClientRect().width") > 0.5 * width - 100
    )
    columns = browser.run(
        "return getComputedStyle(document.querySelector('main')).gridTemplateColumns.split(' ').length"
    )
    assert columns == (1 if size == "phone" else 2)
    assert browser.run(
        "return performance.getEntriesByType('resource').every((e) => e.name.startsWith(location.origin))"
    )
    assert not [line for line in browser.complaints() if "video" not in line]


def test_page_is_used_by_keyboard_and_read_aloud(browser: Browser, page: StatusPage, pressed: list[str]) -> None:
    """Tab reaches every control, with a ring around it; each has a name; what a button did is announced."""
    browser.show_as(*_SIZES["desktop"], dark=False)
    _open(browser, page.url)
    reached = []
    for _ in range(5):
        browser.press("\ue004")
        reached.append(browser.run("return document.activeElement.textContent"))
        assert browser.run("return getComputedStyle(document.activeElement).outlineWidth") == "3px"
    assert reached[:4] == ["Pause", "Resume", "Checkpoint", "Stop"]
    names = browser.names()
    assert {"Pause", "Resume", "Checkpoint", "Stop"} <= names["button"]
    assert {"over", "Process"} <= names["combobox"]
    assert any("Mean return of 8 evaluations, from 10 to 80" in name for name in names["image"])
    assert {"Progress", "Learning curve", "Processes", "Warnings", "Logs", "Settings"} <= names["heading"]
    browser.run("document.querySelector('[data-verb=pause]').focus()")
    browser.press("\ue007")
    said = "return document.querySelector('[role=status]').textContent"
    wait_until(lambda: browser.run(said) == "pause done", "what the button did")
    browser.run("document.querySelector('[data-verb=stop]').focus()")
    for accept, expected in ((False, ["pause"]), (True, ["pause", "stop"])):
        browser.press("\ue007")
        assert "It saves first" in browser.answer_dialog(accept=accept)
        if accept:
            wait_until(lambda: browser.run(said) == "stop done", "what the button did")
        assert pressed == expected


def test_long_curve_says_how_many_evaluations_there_were(browser: Browser, tmp_path: Path) -> None:
    """It has some of their points, the best among them, and so has the table. Fresh episodes refuted the highest."""
    run = RunSettings(name="small", root=str(tmp_path))
    document = RunDocument(RunConfig(run=run), tmp_path, PlainView(run, io.StringIO()))
    status = _status()
    scores = tuple(
        dataclasses.replace(status.scores[0], env_steps=step, mean={250: 9.0, 300: 12.0}.get(step, 1.0))
        for step in range(1_201)
    )
    document.show(dataclasses.replace(status, scores=scores, best=scores[250]))
    with contextlib.closing(StatusPage(document.read, {}, str)) as page:
        _open(browser, page.url)
        caption = str(browser.run("return document.getElementById('curve-text').textContent"))
        table = str(browser.run("return document.getElementById('scores-summary').textContent"))
    assert caption.startswith("Mean return of 1,201 evaluations, from 1 to 1, best 9;")
    assert table.endswith("of 1,201 evaluations as a table")


def test_request_without_an_answer_is_told(browser: Browser, page: StatusPage, tmp_path: Path) -> None:
    """A button whose time is up works again, and settings that cannot be read are asked for when next unfolded."""
    _open(browser, page.url)
    browser.run(
        "const timeout = AbortSignal.timeout.bind(AbortSignal);"
        "AbortSignal.timeout = (ms) => ms > 60000 ? AbortSignal.abort() : timeout(ms);"
        "document.querySelector('[data-verb=pause]').click()"
    )
    said = "return document.querySelector('[role=status]').textContent"
    wait_until(lambda: browser.run(said) == "pause failed: the run does not answer", "what the button did")
    assert browser.run("return !document.querySelector('[data-verb=pause]').disabled")
    (tmp_path / "small" / "config.yaml").rename(tmp_path / "moved")
    settings = "return document.getElementById('settings-text').textContent"
    toggle = "document.querySelector('#settings summary').click()"
    browser.run(toggle)
    wait_until(lambda: "cannot be read" in browser.run(settings), "why there are no settings")
    (tmp_path / "moved").rename(tmp_path / "small" / "config.yaml")
    browser.run(toggle)
    browser.run(toggle)
    wait_until(lambda: browser.run(settings) == "agent: {gamma: 0.99}", "the settings")
    page.close()
    browser.run(toggle)
    browser.run(toggle)
    wait_until(lambda: "cannot be read" in browser.run(settings), "why there are no settings")


def test_page_without_its_token_only_shows(browser: Browser, page: StatusPage) -> None:
    """The buttons are dim, and what to do is said."""
    _open(browser, page.url.partition("#")[0])
    assert browser.run("return [...document.querySelectorAll('button')].every((each) => each.disabled)")
    assert "open the address that the run printed" in str(browser.run("return document.body.innerText"))


def test_scripts_of_other_origins_are_refused(
    browser: Browser, page: StatusPage, pressed: list[str], tmp_path: Path
) -> None:
    """None runs in the page, inline or from elsewhere; a foreign page can neither read nor press."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "index.html").write_text(_FOREIGN_PAGE)
    (tmp_path / "foreign" / "evil.js").write_text("window.evil = 1")
    handler = partial(_Quiet, directory=str(tmp_path / "foreign"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        foreign = f"http://127.0.0.1:{server.server_port}/"
        _open(browser, page.url)
        blocked = browser.run(
            """
            const seen = [], ended = [];
            addEventListener("securitypolicyviolation", (event) => seen.push(event.blockedURI));
            for (const set of [(s) => { s.src = arguments[0] + "evil.js"; }, (s) => { s.text = "window.evil = 2"; }]) {
              const script = document.createElement("script");
              ended.push(new Promise((done) => { script.onerror = done; setTimeout(done, 500); }));
              set(script);
              document.head.append(script);
            }
            return Promise.all(ended).then(() => [seen.sort(), window.evil === undefined]);
            """,
            foreign,
        )
        assert blocked == [[f"{foreign}evil.js", "inline"], True]
        browser.open(foreign)
        answers = browser.run("return tried(arguments[0])", page.url.partition("#")[0])
        server.shutdown()
    assert (answers["read"], answers["press"]) == ("refused", "refused")
    assert pressed == []


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
