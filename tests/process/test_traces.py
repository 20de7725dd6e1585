"""Traces by OpenTelemetry: of a cluster, to files and to a collector, and none unless asked."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.extras import needs_extra, run_with_extras, with_extras
from tests.support.launched import BOUND_S, ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_needs_opentelemetry = needs_extra("opentelemetry")


class _Span(NamedTuple):
    process: str
    name: str
    trace: str
    own: str
    parent: str
    start_ns: int
    end_ns: int
    links: tuple[str, ...]


@contextmanager
def _collector(folder: Path) -> Iterator[str]:
    """Run a collector; yield its address. What it receives is in `otlp.jsonl` of the folder."""
    command = [sys.executable, "-m", "tests.support.otlp_collector", str(folder / "otlp.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=with_extras(), text=True) as collector:
        assert collector.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(collector.stdout.readline())}"
        finally:
            collector.terminate()


def _train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "tidemill.services.launcher", "train", "--config", "cartpole_dqn"]
    command += ["--run.root", str(folder), "--run.name", "traced", "--run.target-return", "none"]
    command += ["--run.max-learner-steps", "300", "--launcher.actors", "1", "--evaluator.episodes", "1"]
    command += ["--evaluator.no-video", *options]
    return run_with_extras(*command, cwd=folder)


def _hex(number: str) -> str:
    """Return an id as hexadecimal digits; protobuf's own JSON has base64."""
    return number if set(number) <= set("0123456789abcdef") else base64.b64decode(number).hex()


def _spans(files: list[Path]) -> list[_Span]:
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [
        _Span(
            process=_attributes(found["resource"])["service.name"],
            name=span["name"],
            trace=_hex(span["traceId"]),
            own=_hex(span["spanId"]),
            parent=_hex(span.get("parentSpanId", "")),
            start_ns=int(span["startTimeUnixNano"]),
            end_ns=int(span["endTimeUnixNano"]),
            links=tuple(_hex(link["spanId"]) for link in span.get("links", ())),
        )
        for line in lines
        for found in line["resourceSpans"]
        for scope in found["scopeSpans"]
        for span in scope["spans"]
    ]


def _attributes(of: Mapping[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"].get("stringValue", "") for each in of["attributes"]}


_ABOVE = {
    "append": "",
    "store": "append",
    "commit": "store",
    "draw": "store",
    "batch": "draw",
    "queue": "batch",
    "decode": "batch",
    "ready": "batch",
    "update": "batch",
}
_OF = {"append": "actor-0", "store": "replay", "commit": "replay", "draw": "replay"}


@_needs_opentelemetry
@pytest.mark.parametrize("way", ["file", "otlp"])
def test_a_trace_leads_from_an_append_to_the_updates_that_used_its_item(tmp_path: Path, way: str) -> None:
    """Three processes make its spans, each under the one that caused it; an item is in two to eight batches."""
    if way == "file":
        ended = _train(tmp_path, "--log.trace-every", "10")
        files = sorted((tmp_path / "traced" / "traces").glob("*.jsonl"))
    else:
        with _collector(tmp_path) as address:
            ended = _train(tmp_path, "--log.trace-every", "10", "--log.trace-to", address)
        files = [tmp_path / "otlp.jsonl"]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    spans = {span.own: span for span in _spans(files)}
    traces = defaultdict(list)
    for span in spans.values():
        traces[span.trace].append(span)
        assert span.process == _OF.get(span.name, "learner")
        assert bool(span.parent) == bool(_ABOVE[span.name])
        assert span.start_ns <= span.end_ns
        if above := spans.get(span.parent):  # one that had not ended with its process is missing
            assert (above.name, above.trace) == (_ABOVE[span.name], span.trace)
            assert above.start_ns <= span.start_ns
    whole = [found for found in traces.values() if {span.name for span in found} == _ABOVE.keys()]
    assert whole
    draws = [sum(span.name == "draw" for span in found) for found in traces.values()]
    assert 1 < max(draws) <= 8
    for span in spans.values():
        if span.name in ("draw", "batch"):  # links lead to what belongs to the other items of the batch
            assert all(spans[link].trace != span.trace for link in span.links if link in spans)


_OFF = """
import sys
from tidemill import ReplayDataset, ReplayWriter
from tests.support.numbered_items import TABLE, write
from tests.support.replay_service import local_server
import tidemill.services.actor.__main__, tidemill.services.learner.__main__, tidemill.services.replay.__main__

with local_server() as server:
    write(server.address, 10)
    with ReplayDataset(server.address, TABLE, 8, timeout_s=60.0) as dataset:
        assert next(dataset).traces == ()
print(sorted(name for name in sys.modules if name.split(".")[0] == "opentelemetry"))
"""


@_needs_opentelemetry
def test_without_traces_opentelemetry_is_never_imported() -> None:
    """Not even where it is installed, by no service's modules, and no batch has contexts."""
    ran = run_with_extras("-c", _OFF)
    assert ran.stdout.splitlines()[-1:] == ["[]"], ran.stderr


def test_traces_without_opentelemetry_are_refused_in_one_line(tmp_path: Path) -> None:
    """Before anything is started, with what to install."""
    command = [sys.executable, "-m", "tidemill.services.launcher", "train", "--log.trace-every", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=BOUND_S, check=False)
    assert ran.returncode == 2
    assert "log.trace_every is 5, which needs OpenTelemetry: pip install 'tidemill[trace]'" in ran.stderr
    assert not list(tmp_path.rglob("*.log"))
