"""Source files that are copies of others: their rows count twice, and may be in both train and test."""

import logging
from collections import defaultdict
from collections.abc import Sequence

from dkan_core.data.source.files import stamp, whole_second
from dkan_core.data.source.sources import Footer, SourceFile
from dkan_core.errors import DataError, redact
from dkan_core.utils.messages import some_of
from dkan_core.utils.storage.failures import readable
from dkan_core.utils.storage.paths import filesystem

# Bytes of two files that are compared at once: few at first, as files of one size mostly differ in their first bytes,
# then four times as many each time.
FIRST_BYTES, MOST_BYTES = 1 << 16, 1 << 24

logger = logging.getLogger(__name__)


def warn_of_copies(files: Sequence[SourceFile], footers: Sequence[Footer]) -> None:
    """Warn of files that are copies of each other; only files of one size and footer are read to find out."""
    alike = defaultdict[tuple[int, str], list[str]](list)
    for file, footer in zip(files, footers, strict=True):
        if file.rows:
            alike[file.bytes, footer.digest].append(file.path)
    copies = []
    for (size, _), paths in alike.items():
        first: dict[bytes, str] = {}
        for path in paths if len(paths) > 1 else ():
            # By the first bytes, so that each file is compared with one other, however many there are.
            original = first.setdefault(_read(path, 0, FIRST_BYTES), path)
            if original != path and _hold_same_bytes(original, path, size):
                copies.append(f"{path} (of {original})")
    if copies:
        logger.warning(
            "copies among the source files, whose rows count twice and may be in both train and test: %s",
            some_of(copies),
        )


def find_original(file: SourceFile, earlier: Sequence[SourceFile]) -> str | None:
    """Return which of the files that were prepared earlier a file is a copy of, if that one is still there."""
    path = redact(file.path)
    alike = [each for each in earlier if (each.rows, each.bytes) == (file.rows, file.bytes) and each.path != path]
    for each in alike if file.rows else ():
        try:
            is_there = whole_second(stamp(each.path)[1]) == whole_second(each.modified)
            if is_there and _hold_same_bytes(each.path, file.path, file.bytes):
                return each.path
        except DataError:  # it is gone, or of a scheme that is not installed here
            continue
    return None


def _hold_same_bytes(path: str, other: str, size: int) -> bool:
    """Return whether two files of ``size`` bytes are equal; they are read up to the first difference."""
    start, count = 0, FIRST_BYTES
    while start < size:
        if _read(path, start, count) != _read(other, start, count):
            return False
        start, count = start + count, min(4 * count, MOST_BYTES)
    return True


def _read(path: str, start: int, count: int) -> bytes:
    # Not by an open file: those of buckets read tens of megabytes ahead.
    fs, name = filesystem(path)
    with readable(path):
        content: bytes = fs.cat_file(name, start=start, end=start + count)
    return content
