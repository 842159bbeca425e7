"""Micro-batching: rows of requests that come in together are scored together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from starlette.requests import ClientDisconnect

Probabilities = npt.NDArray[np.float32]
ScoreBatches = Callable[[Sequence[pa.RecordBatch]], Probabilities]


@dataclass
class _Request:
    rows: pa.RecordBatch
    is_gone: Callable[[], bool]
    answer: asyncio.Future[Probabilities]
    arrived: float
    """By the clock of the event loop."""


class MicroBatcher:
    """Scores the rows of concurrent requests in one call, in a thread of its own.

    While a batch is being scored, the requests that come in form the next one. A first request may also be made to
    wait for others, for a bounded time.

    Args:
        score: What scores rows.
        max_rows: Rows of a batch, at most; a larger request is one of its own.
        max_wait_seconds: How long a request waits for others, at most.
        start_thread: Called first in the thread that scores.
        on_batch: Called with the number of requests and of rows of each batch.
    """

    def __init__(
        self,
        score: ScoreBatches,
        *,
        max_rows: int,
        max_wait_seconds: float,
        start_thread: Callable[[], None] = lambda: None,
        on_batch: Callable[[int, int], None] = lambda requests, rows: None,
    ) -> None:
        self._score = score
        self._max_rows = max_rows
        self._max_wait = max_wait_seconds
        self._on_batch = on_batch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dkan-score", initializer=start_thread)
        self._waiting: deque[_Request] = deque()
        self._waiting_rows = 0
        self._full = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def score(self, rows: pa.RecordBatch, is_gone: Callable[[], bool] = lambda: False) -> Probabilities:
        """Return the probabilities of a request's rows.

        Args:
            rows: Of the request.
            is_gone: Whether its client hung up.

        Shape:
            - Output: ``(N, L)``

        Raises:
            ClientDisconnect: The client hung up before the rows were scored.
        """
        loop = asyncio.get_running_loop()
        request = _Request(rows, is_gone, loop.create_future(), loop.time())
        self._waiting.append(request)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= self._max_rows:
            self._full.set()
        if self._loop is None:
            self._loop = asyncio.create_task(self._score_waiting())
        return await request.answer

    def close(self) -> None:
        """End the thread after its current batch."""
        self._thread.shutdown(cancel_futures=True)

    async def _score_waiting(self) -> None:
        """Score batch after batch until no request waits."""
        while self._waiting:
            await self._wait_for_more()
            if batch := self._next_batch():
                await self._answer(batch)
        self._loop = None

    async def _wait_for_more(self) -> None:
        until = self._waiting[0].arrived + self._max_wait
        if until <= asyncio.get_running_loop().time() or self._waiting_rows >= self._max_rows:
            return
        self._full.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._full.wait()

    def _next_batch(self) -> list[_Request]:
        """Return the next requests to score together; none if no client waits for those that are left."""
        batch: list[_Request] = []
        rows = 0
        while self._waiting:
            following = self._waiting[0]
            if following.is_gone():
                _fail(following, ClientDisconnect())
            is_wanted = not following.answer.done()
            if batch and is_wanted and rows + len(following.rows) > self._max_rows:
                break
            self._waiting_rows -= len(self._waiting.popleft().rows)
            if is_wanted:
                batch.append(following)
                rows += len(following.rows)
        return batch

    async def _answer(self, batch: list[_Request]) -> None:
        try:
            found_NL = await self._scored(batch)
        except Exception as error:
            # The faulty row's request is unknown, so each request is scored alone, and only that one fails.
            if len(batch) == 1:
                _fail(batch[0], error)
            else:
                for request in batch:
                    await self._answer([request])
            return
        stops = np.cumsum([len(request.rows) for request in batch])
        for request, answer_NL in zip(batch, np.split(found_NL, stops[:-1]), strict=True):
            # The answer is cancelled already if its client disconnected.
            if not request.answer.done():
                request.answer.set_result(answer_NL)

    async def _scored(self, batch: list[_Request]) -> Probabilities:
        rows = [request.rows for request in batch]
        self._on_batch(len(rows), sum(map(len, rows)))
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, rows)


def _fail(request: _Request, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
