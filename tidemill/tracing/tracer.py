"""The spans of a process: what each is called, what it belongs to, and where it goes. Imports OpenTelemetry."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidemill.tracing.json_lines import JsonLinesExporter

_EXPORT_S = 5.0
_EVERY_S = 1.0
_HEADER = "traceparent"
_HEADER_BYTES = 55
_PROPAGATOR = TraceContextTextMapPropagator()


class Used(Protocol):
    """A batch that an update has used, with the times of its way by `time.monotonic`; see `ReplayBatch`."""

    @property
    def traces(self) -> tuple[bytes, ...]:
        """Trace context of each item; empty bytes for one that is not traced."""

    @property
    def received_at(self) -> float:
        """When it arrived."""

    @property
    def taken_at(self) -> float:
        """When decoding it began."""

    @property
    def decoded_at(self) -> float:
        """When it was decoded."""


def exporter(to: str, file: Path) -> SpanExporter:
    """Create an exporter of spans: to the OTLP service at `to`, or to `file` if `to` is empty.

    Raises:
        ImportError: The exporter is not installed.
    """
    if not to:
        return JsonLinesExporter(file)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=f"{to.rstrip('/')}/v1/traces", timeout=_EXPORT_S)


class Tracer:
    """Makes spans. Safe to call from several threads."""

    def __init__(self, sink: SpanExporter, *, every: int, run: str, name: str) -> None:
        """Export in a thread of the background, spans of the last second at once, and the rest at the process's exit.

        Args:
            sink: Where they go.
            every: One chunk in so many begins a trace.
            run: Name of the run, attribute `tidemill.run`.
            name: Name of the process, attribute `service.name`.
        """
        resource = Resource.create({"service.name": name, "service.namespace": "tidemill", "tidemill.run": run})
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(sink, schedule_delay_millis=1000 * _EVERY_S))
        self._tracer = provider.get_tracer("tidemill")
        self._every, self._chunks = every, 0

    def append(self, chunks: int, attributes: Mapping[str, Any]) -> Span | None:
        """Begin the trace of a message of so many chunks, if it has the one in `every` that is traced."""
        before, self._chunks = self._chunks, self._chunks + chunks
        if chunks == 0 or (before // self._every == self._chunks // self._every and before):
            return None
        return self._tracer.start_span("append", kind=trace.SpanKind.PRODUCER, attributes=dict(attributes))

    def child(
        self,
        name: str,
        parent: bytes | str | Span,
        *,
        start_ns: int | None = None,
        links: Sequence[bytes] = (),
        attributes: Mapping[str, Any] | None = None,
    ) -> Span:
        """Begin a span under another one, of this process or of another.

        Args:
            name: Its name.
            parent: The span, or its context in the form of a `traceparent`.
            start_ns: When it began, in Unix time; now if not given.
            links: Contexts of spans that belong to it without being above it.
            attributes: What it says.
        """
        above = parent if isinstance(parent, Span) else NonRecordingSpan(_context(parent))
        return self._tracer.start_span(
            name,
            context=trace.set_span_in_context(above),
            links=[Link(_context(link)) for link in links],
            attributes=dict(attributes or {}),
            start_time=start_ns,
        )

    def used(self, batch: Used, began: float, ended: float, attributes: Mapping[str, Any]) -> None:
        """Add the spans of a batch to the trace of each of its items that has one; those are linked to each other.

        Args:
            batch: The batch.
            began: When its update began, by `time.monotonic`, in seconds.
            ended: When its update ended, by the same clock.
            attributes: What the spans say.
        """
        traced = [context for context in batch.traces if context]
        offset_ns = time.time_ns() - time.monotonic_ns()

        def at(monotonic_s: float) -> int:
            return int(1e9 * monotonic_s) + offset_ns

        parts = (
            ("queue", batch.received_at, batch.taken_at),
            ("decode", batch.taken_at, batch.decoded_at),
            ("ready", batch.decoded_at, began),
            ("update", began, ended),
        )
        for context in traced:
            links = [other for other in traced if other is not context]
            whole = self.child("batch", context, start_ns=at(batch.received_at), links=links, attributes=attributes)
            for name, start, end in parts:
                self.child(name, whole, start_ns=at(start)).end(at(end))
            whole.end(at(ended))


def header(span: Span) -> str:
    """Return the context of a span in the form of a `traceparent` (W3C Trace Context)."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return carrier.get(_HEADER, "")


def _context(parent: bytes | str) -> SpanContext:
    """Return the context of a `traceparent`; one that is not valid stands for no span."""
    text = parent.decode("ascii", "replace") if isinstance(parent, bytes) else parent
    found = trace.get_current_span(_PROPAGATOR.extract({_HEADER: text[:_HEADER_BYTES]})).get_span_context()
    return SpanContext(found.trace_id, found.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
