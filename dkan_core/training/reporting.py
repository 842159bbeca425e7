"""What a run shows and writes while it goes: progress bar or log lines, ``history.jsonl``, TensorBoard."""

import json
import logging
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.progress import TextColumn

from dkan_core.config import TrainConfig
from dkan_core.progress import make_progress, on_terminal
from dkan_core.training.channel import Message

logger = logging.getLogger(__name__)


class Reporter:
    """Takes the messages of server and evaluator.

    Args:
        folder: The run's folder.
        config: Resolved settings.
    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.history: list[dict[str, Any]] = []
        self._folder, self._config = folder, config
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        columns = "{task.fields[speed]}  loss {task.fields[loss]}  AP {task.fields[last]}  best {task.fields[best]}"
        self._bar = self._stack.enter_context(make_progress(TextColumn(columns)))
        self._task = self._bar.add_task("training", total=None, speed="starting", loss="-", last="-", best="-")
        self._file = self._stack.enter_context((self._folder / "history.jsonl").open("w", encoding="utf-8"))
        self._board = _tensorboard(self._folder / "tensorboard") if self._config.tensorboard else None
        if self._board is not None:
            self._stack.callback(self._board.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def take(self, message: Message) -> None:
        """Show or write a message."""
        kind = message.pop("kind")
        if kind == "progress":
            self._progress(message)
        else:
            self._evaluation(message)

    def _progress(self, message: Message) -> None:
        speed = f"{message['rows_per_second']:,.0f} rows/s"
        self._bar.update(
            self._task, completed=message["step"], total=message["steps"], speed=speed, loss=f"{message['loss']:.4f}"
        )
        if self._board is not None:
            for name in ("loss", "rows_per_second"):
                self._board.add_scalar(f"train/{name}", message[name], message["step"])

    def _evaluation(self, entry: Message) -> None:
        self.history.append(entry)
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        last, best = entry["average_precision"], entry["best_average_precision"]
        self._bar.update(self._task, last=f"{last:.4f}", best=f"{best:.4f}")
        if self._board is not None:
            self._board.add_scalar("valid/average_precision", last, entry["step"])
        if not on_terminal():
            logger.info(
                "epoch %.2f/%d  step %d  %.0f rows/s  loss %.4f  AP %.4f  best %.4f",
                entry["epoch"],
                self._config.epochs,
                entry["step"],
                entry["rows_per_second"],
                entry["loss"],
                last,
                best,
            )


def _tensorboard(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))
