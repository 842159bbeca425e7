"""A serving process: the model, its batcher, and the HTTP and gRPC servers."""

import asyncio
import functools
import logging
import signal
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any

import torch
from fastapi import FastAPI
from kserve import ModelRepository

from dkan_core.config import ServeConfig
from dkan_core.evaluation.drift.unseen import UnseenWatch
from dkan_core.serving.app import ModelDataPlane, build_app
from dkan_core.serving.batching import MicroBatcher
from dkan_core.serving.grpc_server import grpc_server
from dkan_core.serving.metrics import BATCH_REQUESTS, BATCH_ROWS, UNSEEN_ROWS
from dkan_core.serving.scorer import RequestScorer
from dkan_core.serving.served_model import ServedModel
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.messages import listed_names

logger = logging.getLogger(__name__)


def application(scorer: RequestScorer, config: ServeConfig) -> Any:
    """Return the application of a process that serves.

    Args:
        scorer: The model, warmed up: the application is ready at once.
        config: Settings of the server.
    """
    # A warning about KServe's routes that concerns only KServe's developers.
    warnings.filterwarnings("ignore", "ORJSONResponse is deprecated")
    # Some of torch's backends keep the number of threads per thread.
    start_thread = functools.partial(torch.set_num_threads, config.threads)
    scorer.on_scored = functools.partial(_count_unseen, config.name, UnseenWatch(scorer.preprocessor))
    batcher = MicroBatcher(
        scorer.score,
        max_rows=config.max_batch_rows,
        max_wait_seconds=config.max_wait_ms / 1000,
        start_thread=start_thread,
        on_batch=functools.partial(_count_batch, config.name),
    )
    reasons_thread = ThreadPoolExecutor(1, thread_name_prefix="dkan-reasons", initializer=start_thread)
    repository = ModelRepository()
    repository.update(ServedModel(config.name, scorer, batcher, reasons_thread))
    dataplane = ModelDataPlane(repository)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        exiting = _exit_event()
        server = await _start_grpc(dataplane, config)
        stopping = asyncio.create_task(_stop_grpc(server, exiting, config.grace_seconds))
        url, labels = _predict_url(config), listed_names(scorer.saved.config.labels)
        logger.info("model %s is ready: POST rows to %s for probabilities of %s", config.name, url, labels)
        yield
        exiting.set()
        await stopping
        batcher.close()
        reasons_thread.shutdown(cancel_futures=True)

    return build_app(dataplane, config.name, config.max_request_mb << 20, lifespan)


def _predict_url(config: ServeConfig) -> str:
    """Return where rows are sent to; without its beginning if the system picks the port.

    >>> _predict_url(ServeConfig(name="late")), _predict_url(ServeConfig(name="late", port=0))
    ('http://localhost:8080/v1/models/late:predict', '/v1/models/late:predict')
    """
    host = "localhost" if config.host in ("0.0.0.0", "::") else config.host
    host = f"[{host}]" if ":" in host else host
    return f"{f'http://{host}:{config.port}' if config.port else ''}/v1/models/{config.name}:predict"


async def _start_grpc(dataplane: ModelDataPlane, config: ServeConfig) -> Any:
    if config.grpc_port is None:
        return None
    server, port = grpc_server(
        dataplane,
        config.name,
        config.host,
        config.grpc_port,
        max_bytes=config.max_request_mb << 20,
        shared=config.workers > 1,
    )
    await server.start()
    logger.info("gRPC on port %d", port)
    return server


async def _stop_grpc(server: Any, exiting: asyncio.Event, grace_seconds: float) -> None:
    """Stop the gRPC server like the HTTP server: after the signal it takes no calls, but finishes those it has."""
    await exiting.wait()
    if server is not None:
        await server.stop(grace_seconds)


def _exit_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set before their previous handlers run."""
    loop, exiting = asyncio.get_running_loop(), asyncio.Event()

    def watch(number: signal.Signals) -> None:
        before = signal.getsignal(number)

        def handle(signum: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(exiting.set)
            if callable(before):
                before(signum, frame)

        signal.signal(number, handle)

    with suppress(ValueError):  # only the main thread may handle signals
        watch(signal.SIGTERM)
        watch(signal.SIGINT)
    return exiting


def _count_batch(name: str, requests: int, rows: int) -> None:
    BATCH_REQUESTS.labels(name).observe(requests)
    BATCH_ROWS.labels(name).observe(rows)


def _count_unseen(name: str, watch: UnseenWatch, arrays: Arrays) -> None:
    for column, rows in watch.count(arrays).items():
        UNSEEN_ROWS.labels(name, column).inc(rows)
