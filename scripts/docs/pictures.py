"""Make docs/images of a real run: its live view, status page, learning curve, and the panels of the overview.

    python -m scripts.docs.pictures [OPTION OF tidemill train ...]

A pendulum is trained meanwhile, watched by Chromium and Prometheus (Debian: `chromium prometheus`). Prometheus scrapes
the run's processes and evaluates the rules in deploy/prometheus. The panels are drawn here from its answers to the
dashboard's queries, because Debian has no Grafana.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import yaml
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from tidemill.config.sections import RunConfig
from tidemill.services.launcher.commands import train
from tidemill.services.launcher.view.live import LiveView, render
from tidemill.services.launcher.view.status import ClusterStatus

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "overview.json"
RULES = ROOT / "deploy" / "prometheus" / "rules"

NAME = "pendulum_sac"
"""Name of the config and of the run."""
_EVALUATIONS = 8
"""Evaluations after which the run is photographed."""
_COLUMNS, _ROWS = 76, 40
_WIDTH = 680
"""Pixels of the live view where there is room for them."""
_SCRAPE_S = 2
_TIMEOUT_S = 120.0
_LOADED_FONT = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_GRID = 24
"""Columns of a dashboard."""


@dataclass
class _Photographer:
    """Takes the pictures of a run while it trains."""

    url: str = ""
    trained_s: float = 0.0
    """Unix time at which the learner was last seen to answer."""
    threads: list[threading.Thread] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    def take(self, config: RunConfig, status: ClusterStatus, events: Sequence[str]) -> None:
        """Draw the live view now, and the status page by a browser in another thread."""
        _draw_live_view(config, status, events)
        self.threads.append(threading.Thread(target=self._photograph))
        self.threads[-1].start()

    def _photograph(self) -> None:
        try:
            for scheme, name in ((1, "status-page.png"), (0, "status-page-dark.png")):
                _photograph(self.url, IMAGES / name, scheme)
        except (OSError, subprocess.SubprocessError) as error:
            self.failures.append(error)


class _Recorder(LiveView):
    """A live view that is shown to nobody and calls for the pictures when there is enough to see."""

    def __init__(self, config: RunConfig, photographer: _Photographer) -> None:
        super().__init__(config, io.StringIO())
        self._photographer, self._has_taken = photographer, False

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Keep the address of the page; show everything else as the live view does."""
        if message == "status page":
            (self._photographer.url,) = details
        else:
            super().event(message, details)
        print(message, flush=True)

    def show(self, status: ClusterStatus) -> None:
        """Redraw, and take the pictures once."""
        super().show(status)
        if status.learner_answers:
            self._photographer.trained_s = time.time()
        if not self._has_taken and len(status.scores) >= _EVALUATIONS:
            self._has_taken = True
            self._photographer.take(self._config, status, tuple(self._events))


def main(argv: Sequence[str]) -> int:
    """Make all pictures; return the exit code."""
    photographer = _Photographer()

    def make_view(config: RunConfig, stream: TextIO | None = None) -> LiveView:
        del stream
        return _Recorder(config, photographer)

    with tempfile.TemporaryDirectory(prefix="tidemill-pictures-") as name, _prometheus(Path(name)) as prometheus:
        started_s = time.time()
        words = ["--config", str(ROOT / "configs" / f"{NAME}.yaml"), "--run.root", name, *argv]
        with patch.object(train, "make_view", make_view):
            code = train.train(words)
        for thread in photographer.threads:
            thread.join(_TIMEOUT_S)
        if code or photographer.failures or not photographer.threads:
            seen = f"{len(photographer.threads)} photographs after {_EVALUATIONS} evaluations"
            print(f"pictures: exit code {code}, {seen}, {photographer.failures}", file=sys.stderr)
            return 1
        shutil.copyfile(Path(name) / NAME / "plots" / "learning_curve.png", IMAGES / "learning-curve.png")
        _shrink(IMAGES / "learning-curve.png")
        _draw_dashboard(prometheus, started_s, photographer.trained_s, IMAGES / "dashboard.png")
    return 0


def _draw_live_view(config: RunConfig, status: ClusterStatus, events: Sequence[str]) -> None:
    """Write the live view as an SVG that loads no font."""
    console = Console(record=True, width=_COLUMNS, height=_ROWS, file=io.StringIO(), force_terminal=True)
    console.print(render(config, status, events, console))
    form = _LOADED_FONT.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace, Menlo, Consolas")
    form = form.replace('<svg class="rich-terminal"', f'<svg class="rich-terminal" width="{_WIDTH}"')
    text = console.export_svg(
        title=f"tidemill train --config {NAME}", theme=SVG_EXPORT_THEME, code_format=form, unique_id="view"
    )
    (IMAGES / "live-view.svg").write_text(text, encoding="utf-8")


def _photograph(url: str, file: Path, scheme: int) -> None:
    """Write a picture of the page with a colour scheme of Chromium: 0 dark, 1 light."""
    with tempfile.TemporaryDirectory(prefix="tidemill-chromium-") as profile:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}"]
        command += ["--window-size=800,1010", "--virtual-time-budget=4000", f"--screenshot={file}", url]
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    _shrink(file)


def _shrink(file: Path) -> None:
    """Reduce a picture to 64 colours, which flat surfaces and text do with."""
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


@contextmanager
def _prometheus(folder: Path) -> Iterator[str]:
    """Scrape the run that starts in `folder`, in a Prometheus at a free port; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    targets = folder / "targets.json"
    targets.write_text("[]", encoding="utf-8")
    settings = {
        "global": {"scrape_interval": f"{_SCRAPE_S}s", "evaluation_interval": f"{_SCRAPE_S}s"},
        "rule_files": [str(RULES / "*.yml")],
        "scrape_configs": [
            {
                "job_name": "tidemill",
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": f"{_SCRAPE_S}s"}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    command.append(f"--storage.tsdb.path={folder / 'tsdb'}")
    ended = threading.Event()

    def find_targets() -> None:
        while not ended.wait(_SCRAPE_S):
            found = [_target(log) for log in folder.glob(f"{NAME}/logs/*.log")]
            text = json.dumps([target for target in found if target])
            if text != targets.read_text(encoding="utf-8"):
                targets.write_text(text, encoding="utf-8")

    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    finder = threading.Thread(target=find_targets)
    finder.start()
    try:
        yield address
    finally:
        ended.set()
        finder.join()
        process.terminate()
        process.wait(_TIMEOUT_S)


def _target(log: Path) -> dict[str, Any] | None:
    """Return the metrics address that a process has logged, with the job that the dashboards know it by."""
    found = re.findall(r" metrics=(\S+:\d+)", log.read_text(encoding="utf-8", errors="replace"))
    job = re.split(r"[-.]", log.name)[0]
    return {"targets": [found[-1]], "labels": {"job": job}} if found else None


def _draw_dashboard(prometheus: str, start_s: float, end_s: float, file: Path) -> None:
    """Draw the dashboard's panels, laid out as in Grafana, from Prometheus's answers to their queries."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    panels = [panel for panel in panels if panel["title"] != "Run"]
    top = min(panel["gridPos"]["y"] for panel in panels)
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) - top
    figure = Figure(figsize=(13.0, 0.33 * height), facecolor="#111217")
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / _GRID, place["w"] / _GRID
        bottom, tall = 1 - (place["y"] - top + place["h"]) / height, place["h"] / height
        axes = figure.add_axes((left + 0.045, bottom + 0.03, width - 0.06, tall - 0.065))
        series = [each for target in panel["targets"] for each in _answers(prometheus, target, start_s, end_s)]
        (_draw_stat if panel["type"] == "stat" else _draw_series)(axes, panel, series, (start_s, end_s))
    FigureCanvasAgg(figure)
    figure.savefig(file, format="png", dpi=100, facecolor=figure.get_facecolor())
    _shrink(file)


Series = tuple[str, list[tuple[float, float]]]
"""Legend, and values by Unix time in seconds."""


def _answers(prometheus: str, target: Mapping[str, Any], start_s: float, end_s: float) -> list[Series]:
    """Query Prometheus for one series of a panel: legends, times and values."""
    query = target["expr"].replace("$run", ".*")
    words = urllib.parse.urlencode({"query": query, "start": start_s, "end": end_s, "step": _SCRAPE_S})
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/query_range?{words}", timeout=30) as answer:
        results = json.load(answer)["data"]["result"]

    def legend(labels: Mapping[str, str]) -> str:
        return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), target.get("legendFormat", ""))

    return [(legend(each["metric"]), [(at, float(value)) for at, value in each["values"]]) for each in results]


def _draw_stat(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series], span: tuple[float, float]) -> None:
    """Draw the newest value as a number."""
    del span
    value = series[0][1][-1][1] if series else float("nan")
    text = f"{value:,.1f}" if value != round(value) else f"{value:,.0f}"
    axes.set_axis_off()
    axes.set_title(panel["title"], color="#ccccdc", fontsize=10, loc="left")
    axes.text(0.5, 0.4, text, color="#73bf69", fontsize=20, ha="center", va="center", transform=axes.transAxes)


def _draw_series(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series], span: tuple[float, float]) -> None:
    """Draw curves over seconds since the start."""
    percent = panel["fieldConfig"]["defaults"].get("unit") == "percentunit"
    for legend, values in series:
        times = [at - span[0] for at, _ in values]
        axes.plot(times, [value * (100 if percent else 1) for _, value in values], label=legend, linewidth=1.4)
    unit = panel["fieldConfig"]["defaults"].get("unit", "").removeprefix("suffix:").strip()
    shown = {"percentunit": " (%)", "none": "", "short": "", "": ""}.get(unit, f" ({unit})")
    axes.set_title(panel["title"] + shown, color="#ccccdc", fontsize=10, loc="left")
    axes.set_facecolor("#181b1f")
    axes.set_xlim(0, span[1] - span[0])
    axes.tick_params(colors="#9a9aa8", labelsize=8)
    axes.grid(color="#2c3036", linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if series:
        axes.legend(fontsize=7, facecolor="#181b1f", edgecolor="#181b1f", labelcolor="#ccccdc", loc="best")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
