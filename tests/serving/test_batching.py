"""``MicroBatcher``: what comes in together is scored together, within bounds, and each gets its own answer."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from starlette.requests import ClientDisconnect

from dkan_core import DataError
from dkan_core.serving.batching import MicroBatcher, Probabilities


def rows(*values: float) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.float64())], names=["x"])


class Recorder:
    """Answers each row with its value, once it may; a negative one is an error."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = threading.Event()
        self.started = threading.Event()

    def score(self, batches: Sequence[pa.RecordBatch]) -> Probabilities:
        self.batches.append([len(batch) for batch in batches])
        self.started.set()
        self.may_answer.wait()
        values = np.concatenate([batch["x"].to_numpy() for batch in batches])
        if (values < 0).any():
            raise DataError("request: a row is negative")
        return values.astype(np.float32)[:, None]


async def ask_while_busy(recorder: Recorder, batcher: MicroBatcher, requests: list[pa.RecordBatch]) -> list[Any]:
    """Send requests while a first one is being scored; return the answers of all."""
    first = asyncio.create_task(batcher.score(rows(0)))
    await asyncio.get_running_loop().run_in_executor(None, recorder.started.wait)
    others = [asyncio.create_task(batcher.score(each)) for each in requests]
    await asyncio.sleep(0)
    recorder.may_answer.set()
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    return [each.ravel().tolist() if isinstance(each, np.ndarray) else each for each in answers]


@pytest.mark.parametrize(
    ("requests", "batches"),
    [
        ([[1], [2, 3], [4]], [[1, 2, 1]]),
        ([[1, 2], [3, 4], [5]], [[2, 2], [1]]),
        ([[1], [2, 3, 4, 5, 6, 7], [8]], [[1], [6], [1]]),
    ],
)
def test_requests_that_come_while_the_model_is_busy_are_scored_together(
    requests: list[list[float]], batches: list[list[int]]
) -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.score, max_rows=4, max_wait_seconds=0)
    answers = asyncio.run(ask_while_busy(recorder, batcher, [rows(*values) for values in requests]))
    assert answers == [[0], *requests]
    assert recorder.batches == [[1], *batches]


def test_row_that_cannot_be_scored_fails_its_own_request_alone() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.score, max_rows=8, max_wait_seconds=0)
    answers = asyncio.run(ask_while_busy(recorder, batcher, [rows(1), rows(-1), rows(2, 3)]))
    assert [answers[0], answers[1], answers[3]] == [[0], [1], [2, 3]]
    assert isinstance(answers[2], DataError)


def test_client_that_goes_away_takes_nobodys_answer_with_it() -> None:
    async def ask() -> list[float]:
        recorder = Recorder()
        batcher = MicroBatcher(recorder.score, max_rows=8, max_wait_seconds=0)
        gone = asyncio.create_task(batcher.score(rows(1)))
        await asyncio.get_running_loop().run_in_executor(None, recorder.started.wait)
        gone.cancel()
        stays = asyncio.create_task(batcher.score(rows(2)))
        await asyncio.sleep(0)
        recorder.may_answer.set()
        found: list[float] = (await stays).ravel().tolist()
        return found

    assert asyncio.run(ask()) == [2]


def test_rows_of_a_client_that_hung_up_while_they_waited_are_not_scored() -> None:
    async def ask() -> list[Any]:
        first = asyncio.create_task(batcher.score(rows(0)))
        await asyncio.get_running_loop().run_in_executor(None, recorder.started.wait)
        gone = asyncio.create_task(batcher.score(rows(1, 2), lambda: True))
        stays = asyncio.create_task(batcher.score(rows(3)))
        await asyncio.sleep(0)
        recorder.may_answer.set()
        return [*await asyncio.gather(first, gone, stays, return_exceptions=True)]

    recorder = Recorder()
    batcher = MicroBatcher(recorder.score, max_rows=8, max_wait_seconds=0)
    answers = asyncio.run(ask())
    assert isinstance(answers[1], ClientDisconnect) and [answers[0], answers[2]] == [[0], [3]]
    assert recorder.batches == [[1], [1]]


def test_first_request_waits_for_others_until_the_batch_is_full() -> None:
    async def ask() -> None:
        await asyncio.gather(*(batcher.score(rows(value)) for value in (1, 2, 3)))

    recorder = Recorder()
    recorder.may_answer.set()
    # So long a wait would run into the time limit of the test: what ends it is the third row.
    batcher = MicroBatcher(recorder.score, max_rows=3, max_wait_seconds=3600)
    asyncio.run(ask())
    assert recorder.batches == [[1, 1, 1]]


def test_wait_is_bounded() -> None:
    recorder = Recorder()
    recorder.may_answer.set()
    batcher = MicroBatcher(recorder.score, max_rows=3, max_wait_seconds=0.01)
    assert asyncio.run(batcher.score(rows(1))).tolist() == [[1]]


def test_time_in_which_the_model_was_busy_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(batcher.score(rows(1, 2)))
        await loop.run_in_executor(None, recorder.started.wait)
        second = asyncio.create_task(batcher.score(rows(3)))
        await asyncio.sleep(0)
        # Another hour would run into the time limit of the test.
        now = loop.time() + 3600
        monkeypatch.setattr(loop, "time", lambda: now)
        recorder.may_answer.set()
        await asyncio.gather(first, second)

    recorder = Recorder()
    batcher = MicroBatcher(recorder.score, max_rows=2, max_wait_seconds=3600)
    asyncio.run(ask())
    assert recorder.batches == [[2], [1]]
