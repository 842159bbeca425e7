"""Advice on how to train, from the predictions of a plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.loading.order import steps_per_epoch
from dkan_core.training.planning.device_memory import MemoryNeed, parts_that_fit
from dkan_core.training.planning.formulas import Machine, Prediction, Scheme, predict
from dkan_core.training.planning.sizes import show_duration, show_size
from dkan_core.training.setup.sizing import MAX_BATCH, MIN_BATCH, STEPS_TO_TAKE
from dkan_core.utils.messages import counted

# Something simpler is taken if it reaches this share of the highest speed: predictions are off by about as much.
NEAR = 0.9

# Speedup that justifies another course of learning: twice the batch size, or averages of parameters.
WORTH = 1.2

# Error of measurements, and so of the two limits above: notes say what a repeated measurement may recommend.
MARGIN = 0.05

# Steps below which a plan warns, and halves the batches where it can.
FEW_STEPS = 300
# From this share of a gradient's time on, launches are the limit, not rows.
LAUNCH_SHARE = 0.5
LIMITS = {
    "compute": "computing the gradient is the limit: only more or faster devices help",
    "launch": "computing the gradient is the limit, and most of that time does not depend on the batch size: larger "
    "batches cost little",
    "update": "the optimizer's step is the limit: larger batches need fewer of them",
    "exchange": "the exchange is the limit: larger batches, or an average every few steps, help",
    "feed": "reading rows is the limit: more cores help, or fewer columns and --numeric-dtype uint8 at prepare",
}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A recommendation: strategy, workers, batch size."""

    strategy: str
    mode: str
    workers: int
    batch_size: int
    interval: int
    """Steps between two exchanges."""

    accumulate: int
    """Parts that a worker's rows are computed in, so that they fit into its device."""

    device_memory: float | None
    """Bytes that a worker may use; None where they are not known."""

    steps: int
    """Most steps of the run."""

    seconds: float
    """Time of these steps, without evaluations and what comes before and after all steps."""

    prediction: Prediction
    is_launch_bound: bool
    """Whether most of a gradient's time does not depend on its rows."""

    speedup: float
    """Relative to one worker with its fastest strategy and the batch size of the settings."""

    notes: tuple[str, ...]

    def options(self) -> str:
        """Return the options of ``dkan train``."""
        words = [f"--strategy {self.strategy}"]
        words += [f"--mode {self.mode}"] if self.mode != "sync" else []
        words += [f"--sync-interval {self.interval}"] if self.interval > 1 else []
        words += [f"--workers {self.workers}", f"--batch-size {self.batch_size}"]
        words += [f"--accumulate {self.accumulate}"] if self.accumulate > 1 else []
        return " ".join(words)

    def __str__(self) -> str:
        found = self.prediction
        gain = f"{found.rows_per_second:,.0f} rows/s, {self.speedup:.2f} times the best of one worker"
        limit = "launch" if self.is_launch_bound and found.bottleneck == "compute" else found.bottleneck
        steps = f"{self.steps:,} steps in {show_duration(self.seconds)} at most"
        return f"recommended: {self.options()}\n{gain}, {steps}; {LIMITS[limit]}"


@dataclass(frozen=True, kw_only=True)
class Device:
    """Memory and precision of a worker's device."""

    memory: float | None
    """Bytes; None where they are not known."""

    is_shared: bool
    """Whether all workers together have that memory."""

    need: MemoryNeed
    bf16_speed: float | None
    """How many times as fast as float32 bfloat16 is; None where not known."""

    def memory_of(self, workers: int) -> float | None:
        """Return the bytes that each of ``workers`` workers may use."""
        return self.memory / workers if self.memory is not None and self.is_shared else self.memory


@dataclass(frozen=True, kw_only=True)
class SweepCase:
    """Settings that are fixed while batch sizes are compared."""

    machine: Machine
    scheme: Scheme
    workers: int
    interval: int
    epochs: int
    train_rows: int
    is_fitted: bool
    """Whether the model is fitted again after these steps, so that they need not learn anything."""

    def predict(self, batch_size: int) -> Prediction:
        """Return the prediction for a batch size."""
        return predict(
            self.machine,
            self.scheme,
            self.workers,
            batch_size=batch_size,
            interval=self.interval,
            train_rows=self.train_rows,
        )

    def steps(self, batch_size: int) -> int:
        """Return the steps of the run."""
        return self.epochs * steps_per_epoch(self.train_rows, batch_size)

    def is_launch_bound(self, batch_size: int) -> bool:
        """Return whether most of a gradient's time does not depend on its rows."""
        launch, whole = (self.machine.step(self.scheme, self.workers, rows) for rows in (0, batch_size / self.workers))
        return launch > LAUNCH_SHARE * whole

    def best_batch(self, batch_size: int, worth: float = WORTH) -> int:
        """Return a batch size: doubled while that is worth it and leaves steps to learn, halved while there are few."""
        if self.is_fitted:
            return batch_size
        while self.steps(batch_size) < FEW_STEPS and batch_size // 2 >= max(MIN_BATCH, self.workers):
            batch_size //= 2
        while (
            2 * batch_size <= min(MAX_BATCH, self.train_rows)
            and self.steps(2 * batch_size) >= STEPS_TO_TAKE
            and self.predict(2 * batch_size).rows_per_second > worth * self.predict(batch_size).rows_per_second
        ):
            batch_size *= 2
        return batch_size


def choose(
    predictions: Sequence[Prediction], most_workers: int, schemes: Sequence[Scheme], near: float = NEAR
) -> Prediction:
    """Return the best choice: of the predictions near the fastest, the one with the fewest workers, then the simplest.

    Several workers that take local steps do not learn what one process would: they have to be faster by far.

    Args:
        predictions: Those to choose from.
        most_workers: As many as may be used.
        schemes: In the order of preference.
        near: Share of the highest speed from which on something simpler is taken.
    """
    order = [scheme.name for scheme in schemes]
    local = {scheme.name for scheme in schemes if scheme.has_local_steps}
    allowed = [each for each in predictions if each.workers <= most_workers]
    same = [each for each in allowed if each.workers == 1 or each.scheme not in local]
    best, best_of_same = (max(each.rows_per_second for each in some) for some in (allowed, same))
    good = (each for each in allowed if each.rows_per_second >= near * best)
    if best <= WORTH * best_of_same:
        good = (each for each in same if each.rows_per_second >= near * best_of_same)
    # Fewer workers leave devices to others. One alone exchanges nothing; of the other schemes those
    # come first whose result does not depend on the workers.
    return min(good, key=lambda each: (each.workers, each.scheme != "single", order.index(each.scheme)))


def advise(
    machine: Machine,
    config: ResolvedTrainConfig,
    interval: int,
    train_rows: int,
    predictions: Sequence[Prediction],
    most_workers: int,
    device: Device,
    *,
    is_fitted: bool = False,
) -> Advice:
    """Recommend strategy, workers, batch size, and parts to accumulate."""
    chosen, *others = (
        choose(predictions, most_workers, machine.schemes, near) for near in (NEAR, NEAR - MARGIN, NEAR + MARGIN)
    )
    scheme = next(scheme for scheme in machine.schemes if scheme.name == chosen.scheme)
    case = SweepCase(
        machine=machine,
        scheme=scheme,
        workers=chosen.workers,
        interval=interval,
        epochs=config.epochs,
        train_rows=train_rows,
        is_fitted=is_fitted,
    )
    batch_size = case.best_batch(config.batch_size)
    # The fastest strategy of one worker: a gain over a slower one would be no gain.
    alone = max(each.rows_per_second for each in predictions if each.workers == 1)
    found = case.predict(batch_size)
    rows = batch_size / chosen.workers
    memory = device.memory_of(chosen.workers)
    need = replace(device.need, fixed=device.need.fixed + machine.state_bytes(scheme))
    parts = 1 if memory is None else parts_that_fit(need, rows, memory)
    return Advice(
        strategy=scheme.strategy,
        mode=scheme.mode,
        workers=chosen.workers,
        batch_size=batch_size,
        interval=interval if scheme.has_local_steps else 1,
        accumulate=config.accumulate * (parts or 1),
        device_memory=memory,
        steps=case.steps(batch_size),
        seconds=case.steps(batch_size) * found.step_seconds,
        prediction=found,
        is_launch_bound=case.is_launch_bound(batch_size),
        speedup=found.rows_per_second / alone,
        notes=(
            *_notes(case, config.batch_size, batch_size),
            *_close_calls(chosen, others, case, config.batch_size),
            *_memory_notes(need, rows, memory, parts),
            *_precision_notes(device.bf16_speed),
        ),
    )


def _notes(case: SweepCase, before: int, after: int) -> list[str]:
    """Return warnings and hints about the recommendation."""
    notes = []
    steps = case.steps(before)
    if case.is_fitted:
        notes.append("all terms are fitted again after these steps, by one process, in time that is not planned")
    elif steps < STEPS_TO_TAKE:
        few = "too few to learn much" if steps < FEW_STEPS else f"below the target of {STEPS_TO_TAKE}"
        notes.append(
            f"{counted(steps, 'step')} in {counted(case.epochs, 'epoch')} of batches of {before:,} rows, {few}: "
            "a smaller --batch-size or more --epochs give more"
        )
    if after > before:
        notes.append(f"batches of {before:,} rows are the default for quality; compare AP before taking {after:,}")
    if case.scheme.has_local_steps:
        notes.append("workers that take local steps do not reach the same model as one process; compare AP")
    return notes


def _close_calls(chosen: Prediction, others: Sequence[Prediction], case: SweepCase, before: int) -> list[str]:
    """Return what may be recommended when the same is measured again."""
    sizes = [case.best_batch(before, worth) for worth in (WORTH, WORTH - MARGIN, WORTH + MARGIN)]
    close = [
        *(f"{each.scheme} with {counted(each.workers, 'worker')}" for each in others if each != chosen),
        *(f"--batch-size {size}" for size in sizes if size != sizes[0]),
    ]
    return [f"a close call: another measurement may recommend {' or '.join(dict.fromkeys(close))}"] if close else []


def _memory_notes(need: MemoryNeed, rows: float, memory: float | None, parts: int | None) -> list[str]:
    """Return what the device's memory means for a worker's rows of a step."""
    if memory is None or parts == 1:
        return []
    if parts is None:
        return [
            f"a worker needs {show_size(need.bytes_for(1))} even for one row, and may use "
            f"{show_size(memory)}; lower --members or --hidden"
        ]
    return [
        f"a worker needs {show_size(need.bytes_for(rows))} for its {rows:,.0f} rows of a step, and may use "
        f"{show_size(memory)}; --accumulate computes them in parts, with the same result"
    ]


def _precision_notes(bf16_speed: float | None) -> list[str]:
    if bf16_speed is None or bf16_speed < WORTH:
        return []
    return [
        f"a gradient in bfloat16 is {bf16_speed:.1f} times as fast as in float32 here; try --precision bf16, and "
        "compare AP"
    ]
