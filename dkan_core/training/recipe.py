"""The settings a user leaves open, chosen from the number of rows by rules that are written down here."""

import importlib.util
from dataclasses import replace

import torch

from dkan_core.config import TrainConfig
from dkan_core.errors import ConfigError
from dkan_core.machine import available_cores

BATCH_PER_ROOT = 2.8
MIN_BATCH, MAX_BATCH = 128, 65_536
BASE_BATCH, BASE_RATE, MAX_RATE = 512, 4e-3, 1e-2
EXPONENTS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Of the batch size, by ``lr_scaling``."""
ROWS_TO_SEE, STEPS_TO_TAKE = 1_500_000, 800
MIN_EPOCHS, MAX_EPOCHS = 3, 20
SIZES = ((16_000, 4, 128), (128_000, 2, 128))
"""Rows below which there are so many members of so many hidden units."""
LARGE, PLAIN = (1, 256), (1, 64)
"""Members and hidden units for more rows, and for ``model="fastkan"``."""


def resolve(config: TrainConfig, rows: int, labels: int = 1) -> TrainConfig:
    """Fill in what is None and check the rest against the data and the machine.

    - device: CUDA where there is one.
    - workers: one a GPU; one on the CPU.
    - batch_size: the power of two at or below 2.8 times the root of the rows, from 128 to 65,536.
    - members and hidden: 4 of one layer of 128 units below 16,000 rows, 2 of 128 below 128,000, then 1 of 256: the more
      rows, the less two networks differ.
    - learning_rate: 0.004 up to 512 rows a batch, growing with the batch size by ``lr_scaling``, at most 0.01 by any
      rule: AdamW's steps do not shrink with the gradient's noise, so what diverges in small batches does in large ones.
    - epochs: enough to see 1.5 million rows, at most 10, at least 3; more, up to 20, where that is under 800 steps.

    Raises:
        ConfigError: There is no CUDA, too few GPUs, more workers than rows of a batch, another number of label weights
            than labels, or an extra is missing.
    """
    if config.label_weights and len(config.label_weights) != labels:
        raise ConfigError(f"label_weights: {len(config.label_weights)} numbers; the data has {labels} labels")
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("tensorboard is not installed; run: pip install 'dkan[tensorboard]'")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = config.device if config.device != "auto" else ("cuda" if gpus else "cpu")
    if device == "cuda" and not gpus:
        raise ConfigError("device cuda: no GPU is visible to torch; use --device cpu or check the driver")
    workers = config.workers or (gpus if device == "cuda" else 1)
    if device == "cuda" and workers > gpus:
        raise ConfigError(f"workers {workers}: only {gpus} GPUs are visible; there is one worker a GPU")
    if workers > rows:
        raise ConfigError(f"workers {workers}: the train split has only {rows} rows")
    batch_size = min(config.batch_size or _batch_size(rows), rows)
    if workers > batch_size:
        raise ConfigError(f"workers {workers}: more than the {batch_size} rows of a batch")
    rate = min(MAX_RATE, BASE_RATE * max(1.0, batch_size / BASE_BATCH) ** EXPONENTS[config.lr_scaling])
    members, width = PLAIN if config.model == "fastkan" else _size(rows)
    return replace(
        config,
        members=config.members or members,
        hidden=(width,) if config.hidden is None else config.hidden,
        device=device,
        workers=workers,
        batch_size=batch_size,
        learning_rate=config.learning_rate or rate,
        epochs=config.epochs or _epochs(rows, batch_size),
    )


def _size(rows: int) -> tuple[int, int]:
    return next(((members, width) for below, members, width in SIZES if rows < below), LARGE)


def _batch_size(rows: int) -> int:
    wanted = max(MIN_BATCH, min(MAX_BATCH, int(BATCH_PER_ROOT * rows**0.5)))
    return 1 << (wanted.bit_length() - 1)


def _epochs(rows: int, batch_size: int) -> int:
    by_rows = max(MIN_EPOCHS, min(10, round(ROWS_TO_SEE / rows)))
    by_steps = min(MAX_EPOCHS, STEPS_TO_TAKE * batch_size // rows)
    return max(by_rows, by_steps)


def threads_per_worker(workers: int) -> int:
    """Return how many threads each worker may use on the cores this process may run on."""
    return max(1, available_cores() // workers)
