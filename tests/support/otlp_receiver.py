"""A receiver of OTLP over HTTP: it decodes what arrives by the protocol's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpReceiver:
    """The spans and metrics that arrived, and the server that takes them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.resources: list[dict[str, str]] = []
        self.port = 0

    def take(self, path: str, body: bytes) -> None:
        """Decodes a request."""
        if path == "/v1/traces":
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self._note(of_resource.resource)
                self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self._note(of_resource.resource)
                self.metrics |= {
                    metric.name: metric for scope in of_resource.scope_metrics for metric in scope.metrics
                }

    def _note(self, resource: Any) -> None:
        self.resources.append({pair.key: pair.value.string_value for pair in resource.attributes})

    def named(self, name: str) -> list[Any]:
        """Returns the spans with this name."""
        return [span for span in self.spans if span.name == name]


def attributes_of(span: Any) -> dict[str, Any]:
    """Returns the attributes of a span or a point."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Runs a receiver on a free port."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.take(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - its name

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
