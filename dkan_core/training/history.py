"""``history.jsonl``: the evaluations of a run, one JSON object a line."""

import logging
from typing import Annotated, Any

from pydantic import Field

from dkan_core.utils.schemas import Schema, read_json

HISTORY = "history.jsonl"
BEGINNING = b'{"epoch": '
"""Start of every line, which identifies a file as a run's history."""

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

logger = logging.getLogger(__name__)


class ProcessTimes(Schema):
    """Schema of what an entry says of a process: seconds by part, and more."""

    seconds: Amount
    """Sum of the parts."""

    feed: Amount | None = None
    """Waiting for the next batch."""

    compute: Amount | None = None
    """Forward and backward pass."""

    exchange: Amount | None = None
    """Parameters in, gradients out."""

    wait: Amount | None = None
    """Waiting for other processes."""

    update: Amount | None = None
    """Aggregating gradients, and the step of the optimizer."""

    score: Amount | None = None
    """Scoring a snapshot."""

    save: Amount | None = None
    """Writing the best model."""

    other: Amount | None = None
    """Anything else."""

    utilization: Share | None = None
    """Share of computing in a worker's time."""

    peak_memory: int = Field(ge=0)
    """Peak memory in bytes since the start: allocated on a CUDA device, elsewhere resident."""


class Times(Schema):
    """Schema of ``time`` in an entry of ``history.jsonl``."""

    seconds: Amount
    """Since the previous entry, or the start of the run."""

    workers: list[ProcessTimes]
    """One per worker, by rank."""

    server: ProcessTimes | None = None
    """The parameter server."""

    evaluator: ProcessTimes | None = None
    """The evaluator."""


class HistoryEntry(Schema):
    """One evaluation on the validation split."""

    epoch: Amount
    """Passes over the train split so far."""

    step: Count
    """Steps so far."""

    seconds: Amount
    """Seconds of training so far, over all launches."""

    loss: float
    """Mean training loss since the previous entry."""

    validation_loss: Amount | None = None
    """On the validation split: mean binary cross-entropy, without pos_weight and label_weights."""

    rows_per_second: Amount
    """Training speed since the previous entry."""

    average_precision: Share
    """On the validation split; the mean over labels."""

    best_average_precision: Share
    """The best so far."""

    average_precision_raw: Share | None = None
    """With ema_decay: average precision of the parameters themselves."""

    average_precision_ema: Share | None = None
    """With ema_decay: average precision of their moving average."""

    best: bool
    """Whether this entry is the best so far."""

    due: bool | None = None
    """False where the run was interrupted, and evaluated at a step where it was not due; patience does not count it."""

    time: Times | None = None
    """Seconds of the processes by part since the previous entry."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, without what was not measured."""
        return self.model_dump(exclude_none=True)


def read_history(text: str, where: str) -> list[dict[str, Any]]:
    """Return the evaluations of a run.

    Args:
        text: Content of the file; an incomplete last line, as a killed run leaves it, is dropped.
        where: File that messages name.

    Raises:
        DataError: A line is not an evaluation.
    """
    *lines, rest = text.split("\n")
    if rest:
        logger.warning("%s: line %d is incomplete and is skipped", where, len(lines) + 1)
    return [
        read_json(HistoryEntry, line, f"{where}: line {number}").to_dict() for number, line in enumerate(lines, start=1)
    ]
