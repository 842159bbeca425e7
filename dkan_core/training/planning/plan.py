"""``dkan plan``: how fast each way to train would be with several workers, and which one to take."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dkan_core.config import ResolvedTrainConfig, TrainConfig, check_config
from dkan_core.data.format.manifest import PreparedData, open_prepared
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import ConfigError
from dkan_core.training.planning.advice import Advice, Device, advise
from dkan_core.training.planning.bench import describe_device
from dkan_core.training.planning.checking import PlanCheck, check_plan
from dkan_core.training.planning.device_memory import why_rows_are_sent
from dkan_core.training.planning.formulas import (
    ASSUMED_COPY_BANDWIDTH,
    ASSUMED_LAUNCH,
    HOST_BANDWIDTH,
    LINKS,
    SERVER_LATENCY,
    Machine,
    Prediction,
    predict,
)
from dkan_core.training.planning.measuring import Measurements, measure
from dkan_core.training.planning.model_parallel import ModelParallelPlan, model_parallel_plans, model_parallel_table
from dkan_core.training.planning.sizes import parse_size, show_size
from dkan_core.training.setup.additive_fit_limits import needs_no_gradients
from dkan_core.training.setup.architecture import settle_architecture
from dkan_core.training.setup.defaults import DEFAULT_INTERVAL, resolve_for
from dkan_core.training.setup.initial_model import with_architecture
from dkan_core.training.setup.model_parallel_checks import undivided
from dkan_core.training.setup.placement import visible_gpus
from dkan_core.utils.messages import counted
from dkan_core.utils.resources import available_cores

# The usual sizes of a node, and the ten GPUs that the predecessor of dkan was run on.
WORKERS = (1, 2, 4, 8, 10)
# The formulas are for one node with a fast link; more is taken for a mistyped number.
MAX_GPUS = 1024
# Bytes of one device, at most: a mistyped unit is noticed.
MOST_MEMORY = 1 << 50

# The first and the last are words, set to the left; the others are numbers.
COLUMNS = ("strategy", "workers", "step ms", "rows/s", "speedup", "efficiency", "steps per epoch", "bottleneck")


@dataclass(frozen=True, kw_only=True)
class DeviceAssumptions:
    """What a plan is told about devices that it cannot measure."""

    gpus: int | None = None
    """How many there are; None for those that are visible."""

    link: str = "pcie4"
    """How they are linked."""

    device_memory: int | None = None
    """Bytes of one; None to measure it."""

    rows_per_second: float | None = None
    """Rows whose gradient one computes in a second; None to measure it."""

    def __post_init__(self) -> None:
        if self.gpus is not None and not 1 <= self.gpus <= MAX_GPUS:
            raise ConfigError(f"gpus must be from 1 to {MAX_GPUS:,}, got {self.gpus}")
        if self.link not in LINKS:
            raise ConfigError(f"link must be one of {', '.join(LINKS)}, got {self.link!r}")
        if self.rows_per_second is not None and not 0 < self.rows_per_second < math.inf:
            raise ConfigError(f"rows_per_second must be a number above 0, got {self.rows_per_second}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was measured, what follows from it, and what to do."""

    device: str
    on_cpu: bool
    """Whether the workers share this machine's cores."""

    gpus: int
    """Workers that the recommendation may use."""

    why_sent: str
    """Why GPUs are sent every batch, with any strategy; empty where all rows lie on each GPU."""

    asked: DeviceAssumptions
    """What the plan was told instead of measuring it."""

    batch_size: int
    epochs: int
    interval: int
    """Steps between two exchanges of the strategies that average parameters."""

    measured: Measurements
    predictions: tuple[Prediction, ...] = field(repr=False)
    divided: tuple[ModelParallelPlan, ...] = field(repr=False)
    """What strategies that divide the model would mean for memory; they are not a matter of speed."""

    advice: Advice
    checked: tuple[PlanCheck, ...] = field(repr=False)
    """What short runs measured of the predictions, where they were asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON, times in seconds and sizes in bytes."""
        return {**asdict(self), "assumed": self.assumed()}

    def assumed(self) -> list[str]:
        """Return what the predictions rest on without having been measured."""
        if self.on_cpu:
            return self._assumed_on_cpu()
        link = LINKS[self.asked.link]
        speed = f"{1e6 * link.latency:.0f} us and {link.bandwidth / 1e9:.0f} GB/s"
        return [
            f"assumed, not measured: an all-reduce over {self.asked.link} takes {speed}",
            f"assumed, not measured: the server aggregates {HOST_BANDWIDTH / 1e9:.0f} GB/s in the host's memory, after "
            f"{1e6 * SERVER_LATENCY:.0f} us",
            "assumed, not measured: all GPUs are equally fast, and no two share a way to the host",
            *self._assumed_of_gpu(),
        ]

    def _assumed_on_cpu(self) -> list[str]:
        cores = self.measured.cores
        return [
            *self._missing_gpus(),
            f"workers beyond the {cores} cores take turns and gain nothing",
            "the cost of exchanges among more than 4 workers is extrapolated from 2 and 4",
        ]

    def _missing_gpus(self) -> list[str]:
        """Return a warning where GPUs were asked for, and cores are planned."""
        if not self.on_cpu or self.asked.gpus is None:
            return []
        return [
            f"no GPU is visible: this plans {counted(self.asked.gpus, 'worker')} on this machine's "
            f"{counted(self.measured.cores, 'core')}; to plan for GPUs, give the published or measured rate of one "
            "with --rows-per-second, and its --device-memory"
        ]

    def _assumed_of_gpu(self) -> list[str]:
        """Return what was given or guessed of a GPU that is not there to be measured."""
        notes = []
        if self.asked.rows_per_second is not None:
            notes.append(
                f"given, not measured: one GPU computes the gradient of {self.asked.rows_per_second:,.0f} rows/s"
            )
        if self.measured.probes[1].copy_bandwidth is None:
            notes += [
                f"assumed, not measured: a step takes {1e3 * ASSUMED_LAUNCH:g} ms without rows, a copy between GPU and "
                f"host {ASSUMED_COPY_BANDWIDTH / 1e9:g} GB/s",
                "memory for a step, the optimizer and the loader were measured on this machine's CPU, with "
                f"{counted(self.measured.cores, 'core')}",
            ]
            if self.asked.device_memory is None:
                notes.append("the GPU's memory is unknown and assumed to be unlimited; give it with --device-memory")
        return notes

    def __str__(self) -> str:
        missing = self._missing_gpus()
        warning = [f"warning: {each}" for each in missing]
        checked = ["", *checked_table(self.checked)] if self.checked else []
        divided = ["", *model_parallel_table(self.divided)] if self.divided else []
        advice = str(self.advice)
        if self.asked.gpus and missing:
            without = f"recommended for this machine's CPU, not for {counted(self.asked.gpus, 'GPU')}:"
            advice = advice.replace("recommended:", without, 1)
        notes = [f"note: {note}" for note in (*self.advice.notes, *self.assumed()) if note not in missing]
        return "\n".join([*warning, *self._facts(), "", *self._table(), *divided, *checked, "", advice, *notes])

    # At the end of a notebook's cell as well.
    __repr__ = __str__

    def _facts(self) -> list[str]:
        measured = self.measured
        one = self.measured.probes[1]
        facts = [
            f"device: {self.device}",
            f"model: {measured.parameters:,} parameters, {show_size(measured.size)} per exchange; a worker needs "
            f"{show_size(one.memory)} for a step on {one.large[0]:,} rows, on top of the process itself, and may use "
            f"{show_size(self.advice.device_memory) if self.advice.device_memory else 'an unknown amount'}",
            f"data: {measured.train_rows:,} rows of {one.row_bytes} bytes; the loader reads {one.feed:,.0f} rows/s "
            f"({one.feed * one.row_bytes / 1e6:,.0f} MB/s)",
            f"optimizer: {1e3 * one.update:.2f} ms per step",
        ]
        if self.why_sent:
            facts.append(f"rows: every batch is sent to its GPU: {self.why_sent}")
        if self.asked.rows_per_second is not None:
            return [*facts, f"gradient: one GPU {self.asked.rows_per_second:,.0f} rows per second, as given"]
        for count, cost in measured.costs().items():
            at_once = f"{count} workers at once, each" if count > 1 else "one worker"
            facts.append(f"gradient: {at_once} {cost}")
        if one.graphs is not None:
            facts.append(f"gradient: on rows that lie on the GPU, as a CUDA graph, {measured.graph_cost()}")
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


def checked_table(checked: Sequence[PlanCheck]) -> list[str]:
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
    device_memory: str | None = None,
    rows_per_second: float | None = None,
) -> Plan:
    """Measure one device on a prepared data set, and predict how fast several would train.

    The model is the one that ``train`` would choose, and every strategy is predicted, whatever ``config`` says about
    strategy, mode and workers. docs/concepts/planning.md has the formulas.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote.
        config: Settings; those that are None are chosen as by ``train``.
        gpus: Workers to plan for beyond 1, 2, 4, 8 and 10, and the most to recommend. Default: the GPUs, or the cores.
        link: How the GPUs are linked, "nvlink" or "pcie4".
        check: Whether to run ``train`` briefly, with as many workers as this machine has devices, and compare.
        device_memory: Memory of one GPU, or of one worker's share of the host, such as "80GB". Default: measured.
        rows_per_second: Rows whose gradient one GPU computes in a second, published or measured elsewhere: plans for
            such GPUs, even where none is visible.

    Returns:
        What was measured, what it predicts for each strategy and number of workers, and the advice.

    Raises:
        UserError: The data or a setting is wrong.
    """
    memory = (
        parse_size(device_memory, name="device_memory", most=MOST_MEMORY, example="24GB or 80GB")
        if device_memory
        else None
    )
    asked = DeviceAssumptions(gpus=gpus, link=link, device_memory=memory, rows_per_second=rows_per_second)
    if rows_per_second is not None and check:
        raise ConfigError("check: a plan with a given rows_per_second is for GPUs elsewhere; run it where they are")
    config = config or TrainConfig()
    check_config(TrainConfig, config)
    with open_prepared(prepared, "train", "valid") as (data, manifest):
        return _plan_on(data, manifest, with_architecture(config, manifest, prepared), asked, check=check)


def _plan_on(data: Path, manifest: PreparedData, config: TrainConfig, asked: DeviceAssumptions, *, check: bool) -> Plan:
    """Measure, predict and advise, for prepared data in a local folder and settings with an architecture."""
    interval = config.sync_interval or DEFAULT_INTERVAL
    here = (visible_gpus() if config.device != "cpu" else 0) or available_cores()
    most = asked.gpus or here
    base = _resolved(config, most, data, manifest)
    on_cpu = base.device == "cpu" and asked.rows_per_second is None
    # Each worker needs a row of every batch.
    counts = [count for count in sorted({*WORKERS, most}) if count <= base.batch_size]
    measured = measure(data, manifest, base, counts, cpu_workers=on_cpu)
    device = _device(measured, asked, on_cpu=on_cpu)
    why_sent = "" if on_cpu else why_rows_are_sent(base.data_in, measured.resident_bytes, device.memory)
    machine = measured.machine(asked.link, asked.rows_per_second, holds_rows=not why_sent)
    predictions = _predictions(machine, base, interval, measured.train_rows, counts)
    checked = check_plan(data, base, interval, predictions, here) if check else ()
    share = None if device.is_shared else device.memory
    divided = model_parallel_plans(measured.parameters, base, len(manifest.labels), max(2, most), share)
    is_fitted = needs_no_gradients(base, manifest)
    return Plan(
        device=describe_device(base.device),
        on_cpu=on_cpu,
        gpus=most,
        why_sent=why_sent,
        asked=asked,
        batch_size=base.batch_size,
        epochs=base.epochs,
        interval=interval,
        measured=measured,
        predictions=tuple(predictions),
        # Weights of ids are not divided.
        divided=() if manifest.preprocessor.sparse else divided,
        advice=advise(machine, base, interval, measured.train_rows, predictions, most, device, is_fitted=is_fitted),
        checked=tuple(checked),
    )


def _device(measured: Measurements, asked: DeviceAssumptions, *, on_cpu: bool) -> Device:
    """Return a worker's device; of a GPU that is not there, only what was given is known."""
    one = measured.probes[1]
    is_here = on_cpu or one.copy_bandwidth is not None
    return Device(
        memory=asked.device_memory or (measured.device_memory if is_here else None),
        is_shared=on_cpu and asked.device_memory is None,
        need=measured.need(),
        bf16_speed=one.bf16_speed if is_here else None,
    )


def _resolved(config: TrainConfig, workers: int, data: Path, manifest: PreparedData) -> ResolvedTrainConfig:
    """Return the settings of one worker that takes the global batch of all alone."""
    if "," in config.device:
        raise ConfigError(
            f"device {config.device}: one device is measured; name one, or let plan_slices compare several"
        )
    for split in ("train", "valid"):
        open_split(data, manifest, split).close()
    per_worker = config.batch_size_per_worker
    alone = replace(
        undivided(config),
        workers=1,
        batch_size=workers * per_worker if per_worker else config.batch_size,
        batch_size_per_worker=None,
        # With one worker every strategy computes the same gradient; this one has no local steps.
        strategy="parameter-server",
        mode="sync",
        sync_interval=None,
        resume="never",
    )
    with open_split(data, manifest, "train") as reader:
        return settle_architecture(reader, manifest, resolve_for(alone, manifest))


def _predictions(
    machine: Machine, config: ResolvedTrainConfig, interval: int, train_rows: int, counts: Sequence[int]
) -> list[Prediction]:
    """Return every scheme at every number of workers that it takes."""
    return [
        predict(machine, scheme, count, batch_size=config.batch_size, interval=interval, train_rows=train_rows)
        for scheme in machine.schemes
        for count in counts
        if count <= scheme.most_workers
    ]
