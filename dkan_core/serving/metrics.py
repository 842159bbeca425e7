"""Prometheus metrics of a server, in addition to those of KServe's library."""

import os

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

# Folder in which several server processes share their counts; to be set before this module is imported.
SHARED = "PROMETHEUS_MULTIPROC_DIR"

REQUESTS = Counter("dkan_requests", "Requests answered.", ["model", "protocol", "code"])
SECONDS = Histogram(
    "dkan_request_seconds",
    "Seconds to answer a request; over REST, reading it and sending the response included.",
    ["model", "protocol"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)
ROWS = Counter("dkan_rows", "Rows scored.", ["model"])
UNSEEN_ROWS = Counter(
    "dkan_unseen_rows", "Rows whose value of a column is a category that the model does not know.", ["model", "column"]
)
BATCH_ROWS = Histogram(
    "dkan_batch_rows", "Rows scored in one call.", ["model"], buckets=(1, 4, 16, 64, 256, 1024, 4096, 16_384)
)
BATCH_REQUESTS = Histogram(
    "dkan_batch_requests", "Requests scored in one call.", ["model"], buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)


def exposition() -> tuple[bytes, str]:
    """Return the metrics of all processes of this server, and their content type."""
    registry = REGISTRY
    if os.environ.get(SHARED):
        registry = CollectorRegistry()
        MultiProcessCollector(registry, os.environ[SHARED])  # type: ignore[no-untyped-call]
    return generate_latest(registry), CONTENT_TYPE_LATEST
