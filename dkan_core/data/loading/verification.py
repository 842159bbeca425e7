"""``verify``: every block of prepared data against its hash, before hours are spent on them."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dkan_core.data.format.manifest import open_prepared
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import DataError
from dkan_core.utils.messages import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verified:
    """What was read and verified."""

    shards: int
    bytes: int

    def to_dict(self) -> dict[str, int]:
        """Return the plain form that is saved as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{counted(self.shards, 'shard')}, {self.bytes / 1e9:.2f} GB: every block matches its hash"


def verify(prepared: str | Path, splits: Sequence[str] = ()) -> Verified:
    """Read the shards of prepared data and verify every block; each damaged one is logged.

    Args:
        prepared: Folder or URI that ``prepare`` wrote, or of a manifest that says where the data are.
        splits: Those to look at. Default: all.

    Raises:
        DataError: A block is damaged, or a shard is missing or cut off; the message has the first file and block.
    """
    with open_prepared(prepared, *splits, cache_bytes=0) as (folder, manifest):
        damages = []
        chosen = list(splits or manifest.splits)
        for split in chosen:
            with open_split(folder, manifest, split) as reader:
                for damage in reader.damaged_blocks():
                    logger.error("%s", damage)
                    damages.append(damage)
        if damages:
            raise DataError(f"{prepared}: {counted(len(damages), 'damaged block')}; the first: {damages[0]}")
        shards = [shard for split in chosen for shard in manifest.splits[split].shards]
        return Verified(len(shards), sum(shard.bytes for shard in shards))
