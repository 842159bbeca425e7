"""When checkpoints are written: by restore points and by time, one at a time, and with most of the time left."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dkan_core.errors import OutputError
from dkan_core.tracking.tracker import Trackers
from dkan_core.training.launcher import checkpoint_writer
from dkan_core.training.launcher.checkpoint_writer import CheckpointWriter
from dkan_core.training.launcher.reporting import Reporter, TimeReader
from dkan_core.training.roles.post_step import PostStepHooks
from dkan_core.training.state.adamw import ParameterGroups
from dkan_core.training.state.checkpoint_file import run_facts
from dkan_core.training.state.checkpoint_store import load_checkpoint
from dkan_core.training.state.parameter_store import ParameterStore, UpdateRules, initialize_store, newest_restore_point
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from tests.training.launcher.made_checkpoints import CONFIG, DATA, ROWS, ledger_at
from tests.training.processes import wait_until

OFTEN = 1e-9
"""Seconds between two checkpoints: one is always due."""


class Training:
    """A run without processes, which evaluates every 10 steps: steps are commits, after each is done what is due."""

    def __init__(self, *, local: bool = False) -> None:
        self.memory = create_memory(MemoryShape(parameters=10, workers=1, local=local))
        os.close(self.memory.handle)
        initialize_store(self.memory, np.zeros(10, np.float32))
        self.begin_server()

    def begin_server(self) -> None:
        """Begin as a server that takes the place of another."""
        self.store = ParameterStore(self.memory, UpdateRules.from_config(CONFIG, ROWS, ParameterGroups()))
        self.hooks = PostStepHooks(self.store, lambda *_: True)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            step = self.store.ledger.step + 1
            self.store.standby_KP[:] = self.memory.moments_W2P[:] = step
            version, active = self.store.ledger.version, 1 - self.store.ledger.active_buffer
            self.store.commit(replace(ledger_at(step), version=version, active_buffer=active))
            if self.hooks.is_due:
                self.hooks.run(self.hooks.ending_reason())


class SlowBucket(MemoryFileSystem):  # type: ignore[misc]
    """A bucket that takes a file only once it may."""

    protocol = "slowbucket"
    may_write = threading.Event()
    writing = 0

    def put_file(self, *args: Any, **options: Any) -> None:
        type(self).writing += 1
        assert type(self).writing == 1, "two are written at once"
        assert self.may_write.wait(60)
        super().put_file(*args, **options)
        type(self).writing -= 1


@pytest.fixture
def bucket() -> Iterator[str]:
    fsspec.register_implementation("slowbucket", SlowBucket, clobber=True)
    SlowBucket.may_write.clear()
    yield "slowbucket://run"
    SlowBucket.may_write.set()


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CheckpointWriter]]:
    """Begin to write the checkpoints of a training, by default into a folder ``run``; all of the time may go there."""
    monkeypatch.setattr(checkpoint_writer, "MAX_WRITING_SHARE", 1e9)
    with ExitStack() as stack:

        def begin(
            training: Training, seconds: float, where: str = str(tmp_path / "run"), all_points: bool = False
        ) -> CheckpointWriter:
            memory = training.memory
            times = TimeReader(memory, has_server=False)
            reporter = stack.enter_context(Reporter(tmp_path, training.store.rules.schedule, times, Trackers()))
            facts = run_facts(DATA, {"hidden": [8]}, CONFIG)
            model, best = tmp_path / "model", tmp_path / "best"
            writer = CheckpointWriter(memory, reporter, model, best, where, facts, seconds, all_points=all_points)
            stack.callback(writer.wait)
            return writer

        yield begin


def newest_step(where: str) -> int:
    """Return the step of the newest checkpoint, 0 where there is none."""
    found = load_checkpoint(where)
    if found is None:
        return 0
    assert (found[1].state_KP == found[1].ledger.step).all(), "state and ledger are of one step"
    return found[1].ledger.step


def write_due(writer: CheckpointWriter) -> int:
    """Have the writer do what is due, wait until it has, and return the step of the newest checkpoint."""
    writer.write_if_due()
    writer.wait()
    return newest_step(writer.where)


def test_state_is_asked_for_when_it_is_time_and_written_when_it_is_there(
    begin: Callable[..., CheckpointWriter],
) -> None:
    training = Training()
    writer = begin(training, OFTEN)
    assert write_due(writer) == 0 and not training.memory.checkpoint_request.read().number, "no step: nothing to lose"
    training.step(3)
    assert write_due(writer) == 0, "it is asked for"
    training.step()
    training.memory.buffers_2KP[:] = -1
    assert write_due(writer) == 4, "of the state when it was asked for"
    assert write_due(writer) == 4 and training.memory.checkpoint_request.read().number == 1, "there is nothing new"


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_without_a_limit_or_before_it_checkpoints_are_those_of_restore_points(
    seconds: float, begin: Callable[..., CheckpointWriter]
) -> None:
    training = Training()
    writer = begin(training, seconds)
    steps = []
    for _ in range(25):
        training.step()
        steps.append(write_due(writer))
    assert steps == [0] * 9 + [10] * 10 + [20] * 6 and not training.memory.checkpoint_request.read().number


def test_copies_for_checkpoints_are_no_restore_points(begin: Callable[..., CheckpointWriter]) -> None:
    """A return after refused updates must not depend on the clock."""
    training = Training()
    writer = begin(training, OFTEN)
    for _ in range(18):
        training.step()
        write_due(writer)
    assert newest_step(writer.where) > 10
    found = newest_restore_point(training.memory)
    assert found is not None and found[0].step == 10


def test_two_are_never_written_at_once_and_the_pause_grows_with_what_one_takes(
    begin: Callable[..., CheckpointWriter],
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    training = Training()
    writer = begin(training, OFTEN, bucket)
    training.step()
    writer.write_if_due()
    monkeypatch.setattr(checkpoint_writer, "MAX_WRITING_SHARE", 1e-9)
    training.step()
    writer.write_if_due()
    wait_until(lambda: SlowBucket.writing == 1)
    for _ in range(12):
        training.step()
        writer.write_if_due()
    assert training.memory.checkpoint_request.read().number == 1
    SlowBucket.may_write.set()
    writer.wait()
    assert newest_step(bucket) == 2
    assert "s to write: the next one by time follows after" in caplog.text
    # The restore point of step 10 came meanwhile.
    assert write_due(writer) == 2 and training.memory.checkpoint_request.read().number == 1, "time is left to training"
    training.step(2)
    monkeypatch.setattr(checkpoint_writer, "MAX_WRITING_SHARE", 1e9)
    assert write_due(writer) == 10
    writer.write_if_due()
    assert training.memory.checkpoint_request.read().number == 2
    training.step()
    assert write_due(writer) == 17


def test_checkpoint_that_was_not_written_does_not_put_off_the_next_for_long(
    begin: Callable[..., CheckpointWriter], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_writer, "MAX_WRITING_SHARE", 1e-9)
    monkeypatch.setattr(checkpoint_writer, "LONGEST_PAUSE_SECONDS", 0.0)
    training = Training()
    writer = begin(training, OFTEN)

    def fail(*_: object) -> str:
        raise OutputError("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "save_checkpoint", fail)
        training.step(10)
        assert write_due(writer) == 0
    assert "checkpoint of step 10 was not written: no answer in time" in caplog.text and "follows" not in caplog.text
    training.step(10)
    assert write_due(writer) == 20


@pytest.mark.parametrize(("all_points", "steps"), [(True, [10, 20]), (False, [10, 10])])
def test_restore_points_are_left_out_where_writing_takes_too_long_unless_their_steps_were_set(
    all_points: bool, steps: list[int], begin: Callable[..., CheckpointWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "MAX_WRITING_SHARE", 1e-9)
    training = Training()
    writer = begin(training, 0.0, all_points=all_points)
    found = []
    for _ in range(2):
        training.step(10)
        found.append(write_due(writer))
    assert found == steps
    writer.write_now()
    assert newest_step(writer.where) == 20, "at the end, whatever it takes"


def test_server_answers_what_the_one_before_was_asked(begin: Callable[..., CheckpointWriter]) -> None:
    training = Training()
    writer = begin(training, OFTEN)
    training.step(3)
    writer.write_if_due()
    # Killed while it copied: the ledger is there, the answer is not.
    training.memory.checkpoint_KP[:2] = training.memory.checkpoint_request.read().number
    training.memory.checkpoint_ledger.write(training.store.ledger)
    assert write_due(writer) == 0
    training.begin_server()
    assert training.hooks.is_due
    training.hooks.run("")
    assert write_due(writer) == 3


def test_request_that_nobody_answers_keeps_no_restore_point_from_being_written(
    begin: Callable[..., CheckpointWriter],
) -> None:
    training = Training()
    writer = begin(training, OFTEN)
    training.step(9)
    training.hooks.answered = 99
    writer.write_if_due()
    training.step()
    assert training.memory.checkpoint_answer.read() != training.memory.checkpoint_request.read()
    assert write_due(writer) == 10


@pytest.mark.parametrize("answered", [True, False])
def test_stopped_run_with_moments_of_workers_never_replaces_a_checkpoint_by_an_older_one(
    answered: bool, begin: Callable[..., CheckpointWriter]
) -> None:
    training = Training(local=True)
    writer = begin(training, OFTEN)
    training.step(10)
    assert write_due(writer) == 10
    training.step()
    writer.write_if_due()
    training.step()
    assert write_due(writer) == 12
    if answered:

        def serve() -> None:
            wait_until(lambda: training.hooks.is_due)
            training.step()

        thread = threading.Thread(target=serve)
        thread.start()
        writer.request_state(60)
        thread.join()
    else:
        writer.request_state(0.01)
        training.memory.checkpoint_KP[:] = -1
    writer.write_now()
    assert newest_step(writer.where) == (13 if answered else 12)
