"""Opening Parquet files: errors name the file. Files in a bucket are opened ahead of their use."""

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.data.source.files import AT_ONCE, MAGIC, stamp
from dkan_core.errors import DataError
from dkan_core.utils.messages import first_line, shown
from dkan_core.utils.storage.failures import readable
from dkan_core.utils.storage.files import check_regular
from dkan_core.utils.storage.paths import filesystem, is_remote

# Buffer per column of the row group: 256 MB with 1,000 columns. Less would mean more and shorter reads.
READ_BYTES = 1 << 18
# A file of a bucket up to this size is fetched at once, which takes about as long as a round trip: asking for its size,
# its footer and its rows would take three.
WHOLE_FILE_BYTES = 1 << 18
# A nonce and a tag, which follow the metadata in the footer of a file with encrypted columns.
SIGNATURE_BYTES = 28
# Bytes from the beginning of a file that is no Parquet, and what they are in formats that are no text.
BEGIN_BYTES = 256
FORMATS = {
    b"\x1f\x8b": "compressed as a whole with gzip; unpack it",
    b"PK": "a zip archive, or an Excel workbook; unpack or export it",
    b"ARROW1": "an Arrow (Feather) file",
    b"Obj\x01": "Avro",
    b"ORC": "ORC",
}
# Bytes of footers held at once, as stored: files with many columns and row groups are opened fewer at a time.
AHEAD_BYTES = 8 << 20


class Opened(Protocol):
    """What is known of a file that was opened."""

    @property
    def metadata(self) -> pq.FileMetaData:
        """Its footer."""


Item = TypeVar("Item")
OpenedT = TypeVar("OpenedT", bound=Opened)


def open_parquet(
    path: str, *, in_pieces: bool = False, metadata: pq.FileMetaData | None = None, size: int | None = None
) -> pq.ParquetFile:
    """Open a Parquet file, local or remote; pages with checksums are verified.

    Args:
        path: The file.
        in_pieces: Whether a local one has row groups too large to be read at once.
        metadata: Its footer, where it was read before.
        size: Its bytes, where they are known.

    Raises:
        DataError: The file is truncated, no Parquet file, or encrypted.
    """
    remote = is_remote(path)
    if not remote:
        check_regular(path)
    with readable(path):
        source = _open_remote(path, size) if remote else pa.OSFile(path)
        try:
            parquet = pq.ParquetFile(
                source,
                metadata=metadata,
                page_checksum_verification=True,
                # Without a buffer Arrow reads the whole row group, however large, before its first batch. That is still
                # better for a bucket, where each read is a request.
                buffer_size=READ_BYTES if in_pieces and not remote else 0,
                # Nanoseconds would overflow for dates before 1677 and after 2262.
                coerce_int96_timestamp_unit="us",
                # Fewer requests to a bucket; the fetched bytes stay in memory until the next call.
                pre_buffer=remote,
            )
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            found = _kind_of_content(source) or first_line(error)
            raise DataError(f"{path}: not a complete Parquet file ({found})") from error
        if metadata is None:
            _check_not_encrypted(source, parquet.metadata, path)
    return parquet


class Stamped(NamedTuple):
    """A file that is open, with its size in bytes and modification stamp, as ``stamp`` gave them before."""

    parquet: pq.ParquetFile
    bytes: int
    modified: str

    @property
    def metadata(self) -> pq.FileMetaData:
        """Its footer."""
        return self.parquet.metadata


def open_stamped(path: str) -> Stamped:
    """Open a Parquet file, local or remote; raises DataError as ``open_parquet`` does."""
    size, modified = stamp(path)
    return Stamped(open_parquet(path, size=size), size, modified)


def _open_remote(uri: str, size: int | None) -> Any:
    fs, path = filesystem(uri)
    if size and size <= WHOLE_FILE_BYTES:
        # Without an end, s3fs would ask for the size once more.
        return pa.BufferReader(fs.cat_file(path, start=0, end=WHOLE_FILE_BYTES))
    return fs.open(path, "rb")


def _kind_of_content(file: Any) -> str:
    """Return what a file that Arrow cannot open holds, by its first bytes: nothing, text, another format."""
    file.seek(0)
    begin: bytes = file.read(BEGIN_BYTES)
    if not begin:
        return "it is empty"
    if begin.startswith(MAGIC):
        return ""
    for magic, kind in FORMATS.items():
        if begin.startswith(magic):
            return f"it is {kind}"
    lines = begin.decode(errors="ignore").split("\n")
    is_text = all("".join(line.split()).isprintable() for line in lines)
    return f"it is text, which begins with {shown(lines[0].strip())}" if is_text else ""


def _check_not_encrypted(file: Any, metadata: pq.FileMetaData, path: str) -> None:
    """Raise DataError if columns are encrypted but the footer is not: reading them, Arrow would end the process."""
    file.seek(-8, os.SEEK_END)
    footer_bytes = int.from_bytes(file.read(4), "little")
    if footer_bytes == metadata.serialized_size + SIGNATURE_BYTES:
        raise DataError(f"{path}: has encrypted columns; write it without encryption")


def footer_digest(parquet: pq.ParquetFile) -> str:
    """Return a hash of a footer: row groups, and offset, length, smallest and largest value of each column in them.

    A file that replaced another one with the same size and time rarely has the same hash.
    """
    content = io.BytesIO()
    parquet.metadata.write_metadata_file(content)
    return hashlib.sha256(content.getvalue()).hexdigest()


def open_in_order(open_one: Callable[[Item], OpenedT], items: Sequence[Item], path: str) -> Iterator[OpenedT]:
    """Open one file after the other; those of a bucket several at once, ahead of their use.

    Args:
        open_one: Opens one.
        items: What names each.
        path: One of their paths.
    """
    first = open_one(items[0])
    yield first
    others = iter(items[1:])
    at_once = min(AT_ONCE, AHEAD_BYTES // first.metadata.serialized_size) if is_remote(path) else 0
    del first
    if at_once < 2:
        yield from map(open_one, others)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="dkan-open") as pool:
        ahead = deque[Future[OpenedT]]()
        try:
            for item in others:
                ahead.append(pool.submit(open_one, item))
                if len(ahead) == at_once:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            # After an error, the files opened ahead are not needed.
            for future in ahead:
                future.cancel()
