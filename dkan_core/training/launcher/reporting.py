"""What a run shows and writes while it goes: progress bar or log lines, ``history.jsonl``; and tells its trackers."""

import errno
import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rich.progress import TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dkan_core.errors import OutputError
from dkan_core.tracking.tracker import Progress, Tracker
from dkan_core.training import breakdown
from dkan_core.training.breakdown import Part
from dkan_core.training.communication.messages import Message
from dkan_core.training.history import HISTORY
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.schedule import Schedule
from dkan_core.training.state.shared_memory import SharedMemory, TimeSpent
from dkan_core.utils.messages import counted
from dkan_core.utils.progress import LOG_SECONDS, is_wide, make_progress, on_terminal
from dkan_core.utils.storage.failures import output_error
from dkan_core.utils.storage.files import write_atomic

# Decimals of seconds in the history: a tenth of a millisecond.
DIGITS = 4

logger = logging.getLogger(__name__)


class TimeReader:
    """The launcher's view of all processes' seconds.

    Args:
        memory: Shared memory of the run.
        has_server: Whether there is a parameter server; otherwise every worker does its work.
    """

    def __init__(self, memory: SharedMemory, *, has_server: bool) -> None:
        self._memory = memory
        self._has_server = has_server
        self._since = time.perf_counter()
        self._before = self._read()

    def since_last(self) -> dict[str, Any]:
        """Return the seconds of all processes since the last call, as ``dkan_core.training.breakdown`` has them."""
        since = self._since
        before = self._before
        self._since = time.perf_counter()
        self._before = self._read()
        spent = {
            name: [
                _difference(part, earlier, later)
                for earlier, later in zip(before[name], self._before[name], strict=True)
                if later != TimeSpent()
            ]
            for name, part in self._parts().items()
        }
        single = {name: found[0] for name, found in spent.items() if name != "workers" and found}
        return {"seconds": round(self._since - since, DIGITS), "workers": spent["workers"], **single}

    def _parts(self) -> dict[str, tuple[Part, ...]]:
        """Return which parts each process has, other than "other"."""
        evaluator: dict[str, tuple[Part, ...]] = {"evaluator": ("score", "save", "wait")}
        if not self._has_server:
            return {"workers": ("feed", "compute", "exchange", "update"), **evaluator}
        return {"workers": ("feed", "compute", "exchange", "wait"), "server": ("update", "wait"), **evaluator}

    def _read(self) -> dict[str, list[TimeSpent]]:
        memory = self._memory
        records = {
            "workers": memory.worker_times,
            "server": [memory.server_time],
            "evaluator": [memory.evaluator_time],
        }
        return {name: [record.read() for record in found] for name, found in records.items()}


def _difference(parts: tuple[Part, ...], before: TimeSpent, after: TimeSpent) -> dict[str, float]:
    """Return seconds by part, their sum, the share of computing where that is a part, and the peak of memory."""
    spent: dict[str, float] = {
        part: round(max(0.0, getattr(after, part) - getattr(before, part)), DIGITS) for part in (*parts, "other")
    }
    seconds = sum(spent.values())
    utilization = (
        {"utilization": round(min(1.0, spent["compute"] / max(seconds, 1e-9)), DIGITS)} if "compute" in parts else {}
    )
    return {"seconds": round(seconds, DIGITS), **spent, **utilization, "peak_memory": after.peak_memory}


@dataclass
class Reporter:
    """Takes what the ledger and the evaluator say.

    Args:
        folder: The run's folder.
        schedule: Of the run.
        times: Knows where the processes' time goes.
        tracker: Told of progress and evaluations.
        earlier: Evaluations before a resumption.
        first_step: The step that the run begins or is resumed at.
        shows_scores: Whether to show average precisions; those on rows that the model trains on mean nothing.
    """

    folder: Path
    schedule: Schedule
    times: TimeReader
    tracker: Tracker
    earlier: Sequence[dict[str, Any]] = ()
    _: KW_ONLY
    first_step: int = 0
    shows_scores: bool = True

    def __post_init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self._shown = 0
        self._spoken = time.monotonic()
        """When the log last had a line of progress."""

        self._unsaved_steps: list[float] = []
        """Steps of the best models since the one on disk."""

        self._has_lagged = False
        """Whether evaluations have been skipped."""

        self._stack = ExitStack()

    def __enter__(self) -> Self:
        values = "{task.fields[speed]}  loss {task.fields[loss]}"
        if self.shows_scores:
            values += ("  AP {task.fields[last]}" if is_wide() else "") + "  best AP {task.fields[best]}"
        times = [TimeElapsedColumn(), *([TimeRemainingColumn()] if is_wide() else [])]
        self._bar = self._stack.enter_context(make_progress(TextColumn(values), *times))
        self._task = self._bar.add_task("training", total=None, speed="starting", loss="-", last="-", best="-")
        self._history_file = self.folder / HISTORY
        self._history_file.write_text("", encoding="utf-8")
        self._history_is_whole = True
        for entry in self.earlier:
            self._write(entry)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if kind is None and not self._history_is_whole:
            self._rewrite()

    def take(self, message: Message) -> None:
        """Show or write what a child process says."""
        kind = message.pop("kind")
        if kind == "warning":
            logger.warning("%s", message["text"])
        elif kind == "saved":
            self._unsaved_steps = []
        else:
            self._evaluation(message)

    def progress(self, ledger: Ledger) -> None:
        """Show how far the run is."""
        if ledger.step == self._shown:
            return
        self._shown = ledger.step
        self._bar.update(self._task, completed=ledger.step, total=self.schedule.steps)
        facts = asdict(ledger.figures(self.schedule.steps_per_epoch))
        # The first step starts the clock, and so does the first one after a resumption: there is no speed before.
        if not (ledger.since_weight and facts["rows_per_second"]):
            return
        self._bar.update(self._task, **self._shown_facts(facts))
        if time.monotonic() - self._spoken >= LOG_SECONDS:
            self._log(ledger.step, facts)
        self.tracker.progress(
            Progress(
                step=ledger.step,
                epoch=facts["epoch"],
                loss=facts["loss"],
                rows_per_second=facts["rows_per_second"],
                **_outlook(ledger.step, facts, self.schedule),
            )
        )

    @property
    def has_unsaved_best(self) -> bool:
        """Whether the best model so far is not on disk."""
        return bool(self._unsaved_steps)

    def confirmed(self, until: float = math.inf) -> list[dict[str, Any]]:
        """Return the history up to a step, without evaluations to repeat because their best model is not on disk."""
        first = max((step for step in self._unsaved_steps if step <= until), default=math.inf)
        return [entry for entry in self.history if entry["step"] < first and entry["step"] <= until]

    def _evaluation(self, entry: Message) -> None:
        if entry.pop("saved"):
            self._unsaved_steps = []
        elif entry["best"]:
            self._unsaved_steps.append(entry["step"])
        # An evaluator that was replaced scores again what its predecessor had not saved.
        if any(entry["step"] == earlier["step"] for earlier in self.history):
            return
        entry["time"] = self.times.since_last()
        self._warn_of_skipped(entry["step"])
        self._write(entry)
        last = entry["average_precision"]
        best = entry["best_average_precision"]
        # Update speed and loss, too: a short run may end before its progress was ever shown.
        self._bar.update(self._task, **self._shown_facts(entry), last=f"{last:.4f}", best=f"{best:.4f}")
        self.tracker.evaluation(dict(entry))
        self._log(entry["step"], entry, f"  AP {last:.4f}  best {best:.4f}" if self.shows_scores else "")
        if not on_terminal():
            logger.info("time: %s", breakdown.describe(entry["time"]))

    def _warn_of_skipped(self, step: int) -> None:
        """Warn once if evaluations before that of a step were skipped; a refit has none but the last."""
        # Before a resumption, fewer may have been due: ``evaluations_per_epoch`` may have been raised.
        schedule, before = self.schedule, max([self.first_step, *(entry["step"] for entry in self.history[-1:])])
        skipped = schedule.evaluations_due(step) - schedule.evaluations_due(before) - 1
        # Longer rounds of local steps leave evaluations out, however fast the evaluator is.
        is_timing = schedule.config.sync_interval <= schedule.steps_per_epoch // schedule.evaluations_per_epoch
        if skipped > 0 and is_timing and self.shows_scores and not self._has_lagged:
            self._has_lagged = True
            logger.warning(
                "evaluation lags behind training: %s skipped, so which one is the best depends on timing; "
                "lower --evaluations-per-epoch, or let the evaluator compute elsewhere (--eval-device)",
                counted(skipped, "evaluation"),
            )

    def _log(self, step: int, facts: Mapping[str, Any], scores: str = "") -> None:
        """Write a line to the log; on a terminal, the progress bar shows it."""
        self._spoken = time.monotonic()
        if not on_terminal():
            values = facts["epoch"], self.schedule.config.epochs, step, facts["rows_per_second"], facts["loss"], scores
            logger.info("epoch %.2f/%d  step %d  %.0f rows/s  loss %.4f%s", *values)

    def _shown_facts(self, facts: Mapping[str, float]) -> dict[str, Any]:
        return {
            "description": f"epoch {facts['epoch']:.1f}/{self.schedule.config.epochs}",
            "speed": f"{facts['rows_per_second']:,.0f} rows/s",
            "loss": f"{facts['loss']:.4f}",
        }

    def _write(self, entry: Message) -> None:
        self.history.append(entry)
        try:
            if self._history_is_whole:
                _append(self._history_file, json.dumps(entry) + "\n")
            else:
                self._rewrite()
        except OSError as error:
            self._history_is_whole = False
            logger.error("%s; training continues and will retry the write", output_error(self._history_file, error))
        except OutputError as error:
            logger.error("%s; training continues and will retry the write", error)

    def _rewrite(self) -> None:
        """Write the whole history, after some of it could not be written.

        Raises:
            OutputError: It still cannot.
        """
        write_atomic(self._history_file, "".join(json.dumps(entry) + "\n" for entry in self.history))
        self._history_is_whole = True


def _append(path: Path, line: str) -> None:
    with path.open("ab", buffering=0) as file:
        data = line.encode()
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _outlook(step: int, facts: Mapping[str, float], schedule: Schedule) -> dict[str, int]:
    """Return the percentage of a run that is done, and the seconds that it still takes.

    Args:
        step: Steps done.
        facts: Rows per second now, above 0, and seconds so far.
        schedule: Of the run.
    """
    config, steps = schedule.config, schedule.steps
    done = step / steps
    left = (steps - step) * config.batch_size / facts["rows_per_second"]
    if config.max_seconds is not None:
        done = max(done, facts["seconds"] / config.max_seconds)
        left = min(left, config.max_seconds - facts["seconds"])
    # Below 100: the run is done only after the last evaluation.
    return {"percentage": min(99, int(100 * done)), "remaining_seconds": max(0, round(left))}
