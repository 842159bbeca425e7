"""Where a worker holds its rows: in memory if there is room, otherwise on disk.

Speed relative to memcpy, in CPU time of batches of 8,192 rows: 0.8 to 1.2 from memory, 0.4 to 0.6 from files in the
page cache, where each piece is a system call. With a GPU, rows may lie in its memory instead
(``training/compute/resident_rows.py``).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.data.format.block_cache import read_source
from dkan_core.data.format.manifest import PreparedData, open_prepared
from dkan_core.data.loading.loader import RowReader
from dkan_core.errors import ConfigError
from dkan_core.utils.messages import counted
from dkan_core.utils.resources import available_memory

MEMORY_SHARE = 0.25
"""Share of the free memory that the rows of all workers may take: the page cache holds as much of the same rows, and
the rest is for models and batches."""

HostTier = Literal["memory", "disk"]
WORDS: dict[HostTier, str] = {"memory": "in the memory of each worker", "disk": "on disk"}

logger = logging.getLogger(__name__)


def choose_host_tier(config: ResolvedTrainConfig, size: int) -> HostTier:
    """Return where the rows of each worker are, unless they lie on its device.

    Args:
        config: Resolved settings.
        size: Bytes of the train split.
    """
    if config.data_in in ("memory", "disk", "remote"):
        return "memory" if config.data_in == "memory" else "disk"
    return "memory" if size * config.workers <= MEMORY_SHARE * available_memory() else "disk"


def settle_tier(config: ResolvedTrainConfig, size: int) -> ResolvedTrainConfig:
    """Choose and log where the rows of a run are; return its settings with that, so that all its processes agree.

    Args:
        config: Resolved settings.
        size: Bytes of the train split.
    """
    tier, free = choose_host_tier(config, size), available_memory()
    facts = f"{size / 1e9:.2f} GB, {counted(config.workers, 'worker')}, {free / 1e9:.1f} GB of memory free"
    if config.may_hold_rows and config.data_in in ("auto", "device"):
        logger.info("rows on the GPU, where they fit, otherwise %s: %s", WORDS[tier], facts)
        return config
    logger.info("rows %s: %s", WORDS[tier], facts)
    return replace(config, data_in="remote" if config.data_in == "remote" else tier)


@contextmanager
def open_data(prepared: str | Path, config: TrainConfig) -> Iterator[tuple[Path, PreparedData]]:
    """Yield a local folder to read the rows of a run from, and their manifest.

    Args:
        prepared: Folder or URI that ``prepare`` wrote, or of a manifest that says where the data are.
        config: Settings of the run.

    Raises:
        ConfigError: The data are to stay remote, but are not.
        DataError: There are none, or other ones than the manifest speaks of.
    """
    limit = None if config.data_cache_gb is None else int(config.data_cache_gb * 1e9)
    download = config.data_in == "disk"
    with open_prepared(prepared, "train", "valid", download=download, cache_bytes=limit) as (folder, manifest):
        source = read_source(folder)
        if config.data_in == "remote" and source is None:
            raise ConfigError(f"data_in remote: {prepared} is on this machine; leave it at auto")
        lacking = 0 if source is None else sum(shard.bytes for shard in source.shards) - source.cache_bytes
        if lacking > 0:
            logger.warning(
                "the cache does not hold all of it: unless rows are kept in memory, the other %.2f GB are fetched "
                "again in each epoch, in small requests that add up to 1.3 to 2 times as much; with room for all of it "
                "on disk, data_in disk is faster",
                lacking / 1e9,
            )
        yield folder, manifest


def place_on_host(reader: RowReader, config: ResolvedTrainConfig) -> None:
    """Keep rows in memory, where that tier is chosen, once they were read from disk."""
    size = reader.rows * reader.row_bytes
    if choose_host_tier(config, size) == "memory":
        reader.keep_in_memory()
