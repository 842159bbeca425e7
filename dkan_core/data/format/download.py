"""Download of remote prepared data: the files that the manifest lists, each checked against it."""

import logging
from collections.abc import Sequence
from pathlib import Path

from dkan_core.data.format.integrity import block_hashes, wrong_size
from dkan_core.data.format.shard_writer import Shard
from dkan_core.errors import DataError
from dkan_core.utils.storage.failures import readable
from dkan_core.utils.storage.paths import filesystem, path_inside
from dkan_core.utils.storage.transfers import get_file

logger = logging.getLogger(__name__)


def download_file(uri: str, target: Path) -> None:
    """Copy a remote file to ``target``.

    Raises:
        DataError: It is missing or cannot be reached.
    """
    fs, path = filesystem(uri)
    with readable(uri):
        fs.invalidate_cache()
        try:
            get_file(fs, path, target)
        except FileNotFoundError:
            raise DataError(f"{uri}: no such file; expected a folder that `dkan prepare` wrote") from None


def download_shards(uri: str, shards: Sequence[Shard], folder: Path) -> None:
    """Copy the shards of prepared data; one that arrives damaged is copied once more.

    Args:
        uri: Where the manifest lies.
        shards: What it lists.
        folder: Gets the shards, each in the folder of its split.

    Raises:
        DataError: A shard is missing, or not as the manifest says the second time either.
    """
    for shard in shards:
        name, target = f"{uri.rstrip('/')}/{shard.path}", path_inside(folder, shard.path)
        target.parent.mkdir(exist_ok=True)
        download_file(name, target)
        damage = _damage(target, shard)
        if damage:
            # Only damage in transfer goes away by reading again; damage in the bucket does not, and is an error below.
            logger.warning("%s: %s; reading it once more", name, damage)
            download_file(name, target)
            damage = _damage(target, shard)
        if damage:
            raise DataError(f"{name}: {damage}; restore the file or prepare the data again")


def _damage(path: Path, shard: Shard) -> str:
    """Return how a file differs from the manifest; empty if it does not."""
    if fault := wrong_size(path.stat().st_size, shard.bytes):
        return fault
    with path.open("rb") as file:
        for block, digest in enumerate(block_hashes(file)):
            if digest != shard.blocks[block]:
                return f"block {block} does not match its hash in the manifest"
    return ""
