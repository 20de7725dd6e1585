"""The time of day jumps: nothing that waits, ages or ends may be measured with it."""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path

import pytest
from cryptography import x509
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.unit.test_repository import ROOT, sources
from tidemill.config.run import RunSettings
from tidemill.services.evaluator.run_logs import RunLogs
from tidemill.services.tools.certs import make
from tidemill.tensorboard_writer import TensorboardWriter

_WALL_TIME = re.compile(r"\btime\.(time|time_ns)\b|\bdatetime\.(now|utcnow|today)\b|\bdate\.today\b")

_HOUR_S = 3600.0

_USES = {
    "services/evaluator/eval_report.py": "says when a policy was tested",
    "services/tools/certs.py": "dates certificates, a day before they are made",
    "services/tools/doctor/machine.py": "says how long certificates last",
    "tidemill/curves.py": "dates a line of metrics.jsonl and curves, which is read in the order of its steps",
    "services/paramserver/__main__.py": "dates versions, which are ordered by their numbers",
    "services/replay/commands/options.py": "says what time `2h` ago was",
    "services/replay/item_traces.py": "dates the end of a span, which another process may have started",
    "services/replay/server.py": "makes epochs grow over restarts; random bits tell them apart when it does not",
    "services/replay/servicer.py": "dates the start of a span",
    "services/replay/state/replay_state.py": "notes when items came, for ranges of the clock (ADR 0046)",
    "tidemill/atomic_files.py": "finds what was left a day ago by the dates of files",
    "tidemill/bundle/files.py": "says when a policy was exported",
    "tidemill/rpc/telemetry.py": "says when a process started",
    "tidemill/tensorboard_writer.py": "dates points, and numbers files, each above those before it",
    "tidemill/tracing/tracer.py": "dates spans, whose lengths are measured by the monotonic clock",
}
"""Where the time of day is read, and what for."""


def test_time_of_day_is_read_where_it_is_only_written_down() -> None:
    """Whoever waits or measures takes the monotonic clock; a new use stands in the list above with its reason."""
    found = {
        str(path.relative_to(ROOT)) for path in sources("tidemill", "services") if _WALL_TIME.search(path.read_text())
    }
    assert found == set(_USES)


@pytest.mark.parametrize("jump_s", [_HOUR_S, -_HOUR_S])
def test_limit_of_a_run_does_not_see_the_clock_jump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """`max_wall_s` and the times in scores.csv count seconds that pass, within a session and over a resume."""
    run = RunSettings(root=str(tmp_path), name="run")
    logs = RunLogs(run, lambda: 130.0)
    monkeypatch.setenv("TIDEMILL_SESSION_START_S", "100.0")
    first = RunLogs(run, lambda: 130.0)
    present = time.time()
    monkeypatch.setattr(time, "time", lambda: present + jump_s)
    assert (logs.clock.wall_s(), first.clock.wall_s()) == (0.0, 30.0)
    first.clock.save()
    monkeypatch.setenv("TIDEMILL_SESSION_START_S", "500.0")
    assert RunLogs(run, lambda: 505.0).clock.wall_s() == 35.0


@pytest.mark.parametrize("jump_s", [0.0, -_HOUR_S])
def test_tensorboard_shows_what_is_written_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """Whether it was watching before or is started later, the points come in the order of their steps."""
    watching = EventAccumulator(str(tmp_path))
    present = time.time()
    for step in range(3):
        monkeypatch.setattr(time, "time", lambda now=present + step * jump_s: now)
        TensorboardWriter(tmp_path).write({"loss": 0.5}, step)
        for reader in (watching, EventAccumulator(str(tmp_path))):
            assert [point.step for point in reader.Reload().Scalars("loss")] == list(range(step + 1))


def test_certificate_made_by_a_clock_that_is_set_back_is_valid(tmp_path: Path) -> None:
    """An hour ahead, or far more: it begins a day before it was made."""
    make(tmp_path)
    now = datetime.datetime.now(datetime.UTC)
    for file in tmp_path.glob("*.pem"):
        begins = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_before_utc
        assert begins < now - datetime.timedelta(hours=23)
