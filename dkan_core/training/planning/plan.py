"""``dkan plan``: how fast each way to train would be with several workers, and which one to take."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dkan_core.config import TrainConfig
from dkan_core.data.loader import open_split
from dkan_core.data.manifest import PreparedData, open_prepared
from dkan_core.errors import ConfigError
from dkan_core.machine import available_cores
from dkan_core.training.planning.advice import Advice, advise
from dkan_core.training.planning.bench import describe_device, show_size
from dkan_core.training.planning.checking import Checked, check_plan
from dkan_core.training.planning.formulas import LINKS, SCHEMES, Machine, Prediction, predict
from dkan_core.training.planning.measuring import Measured, measure
from dkan_core.training.recipe import DEFAULT_INTERVAL, resolve

WORKERS = (1, 2, 4, 8, 10)
MAX_GPUS = 1024
COLUMNS = ("strategy", "workers", "step ms", "rows/s", "speedup", "efficiency", "steps an epoch", "bottleneck")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was measured, what follows from it, and what to do."""

    device: str
    on_cpu: bool
    gpus: int
    """Workers that the recommendation may use."""

    link: str
    """How the GPUs are assumed to be linked."""

    batch_size: int
    epochs: int
    interval: int
    """Steps between two exchanges of the strategies that average parameters."""

    measured: Measured
    predictions: tuple[Prediction, ...]
    advice: Advice
    checked: tuple[Checked, ...]
    """Short runs beside their predictions, where they were asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON, times in seconds and sizes in bytes."""
        return {**asdict(self), "assumed": self.assumed()}

    def assumed(self) -> list[str]:
        """Return what the predictions rest on without having been measured."""
        if self.on_cpu:
            beyond = f"workers beyond the {self.measured.cores} cores take turns and gain nothing"
            return [beyond, "exchanges of more than 4 workers cost what a line through 2 and 4 says"]
        link = LINKS[self.link]
        speed = f"{1e6 * link.latency:.0f} us and {link.bandwidth / 1e9:.0f} GB/s"
        return [
            f"assumed, not measured: an all-reduce over {self.link} takes {speed}",
            "assumed, not measured: the server merges 60 GB/s in the host's memory, after 60 us",
            "assumed, not measured: every GPU is as fast as this one, and no two share a way to the host",
        ]

    def __str__(self) -> str:
        checked = ["", *checked_table(self.checked)] if self.checked else []
        notes = [f"note: {note}" for note in (*self.advice.notes, *self.assumed())]
        return "\n".join([*self._facts(), "", *self._table(), *checked, "", str(self.advice), *notes])

    def _facts(self) -> list[str]:
        measured, one = self.measured, self.measured.probes[1]
        facts = [
            f"device: {self.device}",
            f"model: {measured.parameters:,} parameters, {show_size(measured.size)} an exchange; a worker needs "
            f"{show_size(one.memory)} for a step on {one.large[0]:,} rows, beside the process itself",
            f"data: {measured.train_rows:,} rows of {one.row_bytes} bytes; the loader reads {one.feed:,.0f} rows/s "
            f"({one.feed * one.row_bytes / 1e6:,.0f} MB/s)",
            f"optimizer: {1e3 * one.update:.2f} ms a step",
        ]
        for count, cost in measured.costs().items():
            at_once = f"{count} workers at once, each" if count > 1 else "one worker"
            facts.append(f"gradient: {at_once} {1e3 * cost.launch:.2f} ms + rows / {cost.rate:,.0f} a second")
        return facts

    def _table(self) -> list[str]:
        lines = [f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 2) + "---|"]
        base = min(each.step_seconds for each in self.predictions if each.workers == 1)
        for each in self.predictions:
            cells = (
                each.scheme,
                each.workers,
                f"{1e3 * each.step_seconds:.2f}",
                f"{each.rows_per_second:,.0f}",
                f"{base / each.step_seconds:.2f}",
                f"{each.efficiency:.0%}",
                f"{each.steps_per_epoch:,}",
                each.bottleneck,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
        return lines


def checked_table(checked: Sequence[Checked]) -> list[str]:
    """Return Markdown: what was predicted and what short runs did."""
    lines = [
        "| strategy | workers | predicted rows/s | measured | measured / predicted |",
        "|---|" + "---:|" * 4,
    ]
    for each in checked:
        ratio = each.measured / each.predicted
        lines.append(f"| {each.scheme} | {each.workers} | {each.predicted:,.0f} | {each.measured:,.0f} | {ratio:.2f} |")
    return lines


def plan(
    prepared: str | Path,
    config: TrainConfig | None = None,
    *,
    gpus: int | None = None,
    link: str = "pcie4",
    check: bool = False,
) -> Plan:
    """Measure one device on a prepared data set, and predict how fast several would train.

    The model is the one that ``train`` would choose, and every strategy is predicted, whatever ``config`` says about
    strategy, mode and workers. docs/plan.md has the formulas.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote.
        config: Settings; what is None in it is chosen as by ``train``.
        gpus: Workers to plan for besides 1, 2, 4, 8 and 10, and the most to recommend. Default: the GPUs, or the cores.
        link: How the GPUs are linked, "nvlink" or "pcie4".
        check: Whether to run ``train`` shortly, with as many workers as this machine has devices, and compare.

    Raises:
        UserError: The data or a setting is wrong.
    """
    if gpus is not None and not 1 <= gpus <= MAX_GPUS:
        raise ConfigError(f"gpus must be from 1 to {MAX_GPUS}, got {gpus}")
    if link not in LINKS:
        raise ConfigError(f"link must be one of {', '.join(LINKS)}, got {link!r}")
    asked = config or TrainConfig()
    interval = asked.sync_interval or DEFAULT_INTERVAL
    with open_prepared(prepared) as (data, manifest):
        base = _resolved(asked, data, manifest)
        assert base.batch_size is not None and base.epochs is not None
        here = available_cores() if base.device == "cpu" else torch.cuda.device_count()
        most = gpus or here
        counts = [count for count in sorted({*WORKERS, most}) if count <= base.batch_size]
        measured = measure(data, manifest, base, counts)
        machine = measured.machine(link)
        predictions = _predictions(machine, base, interval, measured.train_rows, counts)
        checked = check_plan(data, base, interval, predictions, here) if check else ()
    return Plan(
        device=describe_device(base.device),
        on_cpu=base.device == "cpu",
        gpus=most,
        link=link,
        batch_size=base.batch_size,
        epochs=base.epochs,
        interval=interval,
        measured=measured,
        predictions=tuple(predictions),
        advice=advise(machine, base, interval, measured.train_rows, predictions, most),
        checked=tuple(checked),
    )


def _resolved(config: TrainConfig, data: Path, manifest: PreparedData) -> TrainConfig:
    """Return the settings of one worker that merges every step."""
    if "," in config.device:
        raise ConfigError(f"device {config.device}: one device is measured; name one")
    for split in ("train", "valid"):
        open_split(data, manifest, split).close()
    alone = replace(config, workers=1, strategy="parameter-server", mode="sync", sync_interval=None, resume="never")
    return resolve(alone, manifest.splits["train"].rows, len(manifest.labels))


def _predictions(
    machine: Machine, config: TrainConfig, interval: int, train_rows: int, counts: Sequence[int]
) -> list[Prediction]:
    """Return every scheme at every number of workers that it takes."""
    assert config.batch_size is not None
    return [
        predict(machine, scheme, count, batch_size=config.batch_size, interval=interval, train_rows=train_rows)
        for scheme in SCHEMES
        for count in counts
        if count <= scheme.most_workers
    ]
