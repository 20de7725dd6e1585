"""Spans as lines of a file, each an OTLP message in its JSON form: what Jaeger and the OpenTelemetry Collector read."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult


class JsonLinesExporter:
    """Appends to a file, as an exporter of OpenTelemetry (`SpanExporter`). A full disk loses spans, nothing else."""

    def __init__(self, path: Path) -> None:
        """Take the path; the folder and the file are made with the first span."""
        self._path, self._lock = path, threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append a line of all spans, which are of one process."""
        if not spans:
            return SpanExportResult.SUCCESS
        line = json.dumps(_message(spans)) + "\n"
        try:
            with self._lock:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line)
        except OSError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing: the file is open only while it is written."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the interface's
        """Do nothing: what was exported is in the file."""
        return True


def _message(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    scope = {"scope": {"name": "tidemill"}, "spans": [_span(span) for span in spans]}
    return {
        "resourceSpans": [
            {"resource": {"attributes": _attributes(spans[0].resource.attributes)}, "scopeSpans": [scope]}
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    found = {
        "traceId": f"{span.context.trace_id:032x}",
        "spanId": f"{span.context.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "links": [
            {"traceId": f"{link.context.trace_id:032x}", "spanId": f"{link.context.span_id:016x}"}
            for link in span.links
        ],
    }
    if span.parent is not None:
        found["parentSpanId"] = f"{span.parent.span_id:016x}"
    return found


def _attributes(attributes: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - of OpenTelemetry, or a dict
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: object) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
