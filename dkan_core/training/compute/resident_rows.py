"""Batches gathered on a device that holds all rows: the host only says where a batch begins.

Rows, their order and their keys for dropout are those of ``loader``, to the bit.

Shape suffixes: N rows of the split, B rows of a batch.
"""

import logging
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.hashing import salted
from dkan_core.data.loading.loader import RowReader, row_bytes_in_batch
from dkan_core.data.loading.order import epoch_order, piece_rows
from dkan_core.errors import ConfigError
from dkan_core.training.compute.row_keys import KeyRule
from dkan_core.training.compute.row_lookup import look_up

CHUNK_BYTES = 256 << 20
"""Size of the pieces in which rows are copied to the device: the host holds no more, apart from the page cache."""

SPARE_BYTES = 4 << 30
SPARE_SHARE = 0.25
"""Share of a device's free memory, and least bytes, that stay free for activations and for other processes."""

ORDER_BYTES = 24
"""Bytes of a row for the order of an epoch, while it is made."""

logger = logging.getLogger(__name__)


def may_lie_on_device(config: ResolvedTrainConfig, device: torch.device) -> bool:
    """Return whether rows may lie on a device: if steps are taken on it, and ``data_in`` allows it."""
    takes_steps = config.takes_local_steps or config.mode != "sync"
    return takes_steps and device.type == "cuda" and config.data_in in ("auto", "device")


def rows_on_device(
    reader: RowReader, config: ResolvedTrainConfig, device: torch.device, on_chunk: Callable[[], None]
) -> "ResidentRows | None":
    """Copy all rows of a split to a device; return None where they do not fit there.

    Raises:
        ConfigError: They do not fit, and ``data_in`` asks for the device.
    """
    size = reader.rows * row_bytes_in_batch(reader) / 1e9
    if config.data_in not in ("auto", "device"):
        return None
    if fits_device(reader, device):
        # Processes that share a device may count its free memory at the same moment, and all claim it.
        try:
            return ResidentRows(reader, config, device, on_chunk)
        except torch.cuda.OutOfMemoryError:
            logger.warning("%s ran out of memory while %.1f GB of rows were copied there", device, size)
        torch.cuda.empty_cache()
    if config.data_in == "device":
        raise ConfigError(f"data_in device: {size:.1f} GB of rows do not fit on {device}; leave it at auto")
    logger.info("%.1f GB of rows do not fit on %s; every batch is sent there when it is needed", size, device)
    return None


def fits_device(reader: RowReader, device: torch.device) -> bool:
    """Return whether the rows of a split can lie on a device."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return resident_bytes(reader) <= room_for_rows(free)


def resident_bytes(reader: RowReader) -> int:
    """Return the bytes that the rows of a split take on a device, with the order of an epoch."""
    return reader.rows * (row_bytes_in_batch(reader) + ORDER_BYTES)


def room_for_rows(free: float) -> float:
    """Return the bytes that rows may take of a device's free memory.

    >>> room_for_rows(80 << 30) / (1 << 30), room_for_rows(10 << 30) / (1 << 30)
    (60.0, 6.0)
    """
    return free - max(SPARE_BYTES, SPARE_SHARE * free)


class ResidentRows:
    """All rows of a split on a device, and the order in which an epoch visits them."""

    def __init__(
        self,
        reader: RowReader,
        config: ResolvedTrainConfig,
        device: torch.device,
        on_chunk: Callable[[], None] = lambda: None,
    ) -> None:
        self.reader = reader
        self.seed = config.seed
        self.keep_keys = config.bags_rows
        self.device = device
        self.rows = reader.rows
        self.arrays = _upload(reader, device, on_chunk)
        self.order_N = torch.empty(self.rows, dtype=torch.int64, device=device)
        self._epoch = -1

    def begin_epoch(self, epoch: int) -> None:
        """Give ``gather`` the order of an epoch; its buffer stays where it is."""
        if epoch == self._epoch:
            return
        piece = piece_rows(self.rows, self.reader.row_bytes)
        stream = epoch_order(self.reader.starts, piece=piece, seed=self.seed, epoch=epoch)
        lengths = torch.from_numpy(np.diff(stream.position)).to(self.device)
        shift = torch.from_numpy(stream.first - stream.position[:-1]).to(self.device)
        self.order_N.copy_(torch.repeat_interleave(shift, lengths, output_size=self.rows))
        self.order_N += torch.arange(self.rows, device=self.device)
        self._epoch = epoch

    def gather(self, position: Tensor, epoch: Tensor, count: int) -> dict[str, Tensor]:
        """Return the rows of an epoch from a position in its stream on.

        Args:
            position: Position of the first row, ``(1,)`` int64 on the device.
            epoch: Which epoch, ``(1,)`` int64 on the device.
            count: How many rows, B.
        """
        keys = KeyRule(salted(self.seed, "dropout"), self.keep_keys)
        rows_B, key_B = look_up(self.order_N, position, epoch, count, keys)
        batch = {name: array.index_select(0, rows_B) for name, array in self.arrays.items()}
        return {**batch, "dropout_key": key_B}


def _upload(reader: RowReader, device: torch.device, on_chunk: Callable[[], None]) -> dict[str, Tensor]:
    """Copy all rows to a device, in their stored order."""
    arrays: dict[str, Tensor] = {}
    chunk = max(1, CHUNK_BYTES // row_bytes_in_batch(reader))
    for shard_start, shard_stop in zip(reader.starts, reader.starts[1:], strict=False):
        for start in range(int(shard_start), int(shard_stop), chunk):
            stop = min(start + chunk, int(shard_stop))
            for name, rows in reader.gather([(start, stop)]).items():
                if name not in arrays:
                    dtype = torch.from_numpy(rows[:0]).dtype
                    arrays[name] = torch.empty((reader.rows, *rows.shape[1:]), dtype=dtype, device=device)
                arrays[name][start:stop].copy_(torch.from_numpy(rows))
            on_chunk()
    return arrays
