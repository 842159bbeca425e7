"""Fragments of the source files, each read on its own, and parts: lists of fragments, with about equal total rows.

A part is what one process or pod prepares. Fragments are as in Arrow's data sets: a file, or some of its row groups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dkan_core.data.source.parquet_files import open_in_order
from dkan_core.data.source.reading import OpenFile, open_file
from dkan_core.data.source.roles import ColumnRoles
from dkan_core.data.source.sources import Footer, SourceFile


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """Consecutive row groups of a source file."""

    path: str

    first: int
    """Number of the first row, counted through all source files."""

    rows: int

    groups: tuple[int, int] | None = None
    """The first row group, and the one past the last; None is the whole file."""

    footer: str
    """Digest of the file's footer, which must be the same whenever the rows are read."""

    file: SourceFile | None = None
    """The file, which must still be the same after its rows were read; None in a plan."""


def open_fragments(fragments: Sequence[Fragment], roles: ColumnRoles) -> Iterator[OpenFile]:
    """Open each fragment to read its rows; those of a bucket are opened ahead."""

    def open_fragment(fragment: Fragment) -> OpenFile:
        return open_file(
            fragment.path,
            fragment.groups,
            fragment.footer,
            folder_types=roles.folders,
            common=roles.common,
            size=None if fragment.file is None else fragment.file.bytes,
        )

    return open_in_order(open_fragment, fragments, fragments[0].path)


def whole_files(files: Sequence[SourceFile], footers: Sequence[Footer], first: int = 0) -> list[Fragment]:
    """Return one fragment per file; ``first`` is the number of the first row of all."""
    fragments = []
    for file, footer in zip(files, footers, strict=True):
        fragments.append(Fragment(path=file.path, first=first, rows=file.rows, footer=footer.digest, file=file))
        first += file.rows
    return fragments


def cut_parts(files: Sequence[SourceFile], footers: Sequence[Footer], parts: int) -> list[list[Fragment]]:
    """Cut the rows into parts, at bounds of row groups, none of them empty.

    Args:
        files: Source files in a fixed order.
        footers: Those of the files.
        parts: How many parts are wanted; where there are fewer row groups, fewer come.

    >>> a, b = (SourceFile(path=path, rows=40, bytes=0, modified="") for path in "ab")
    >>> footers = [Footer(groups=groups, digest="") for groups in ([20, 20], [40])]
    >>> for part in cut_parts([a, b], footers, 2):
    ...     print([(fragment.path, fragment.first, fragment.groups) for fragment in part])
    [('a', 0, (0, 2))]
    [('b', 40, (0, 1))]
    """
    total = sum(file.rows for file in files)
    cut: dict[int, list[Fragment]] = {}
    for fragment in _row_groups(files, footers):
        # A row group goes to the part that contains its middle row.
        fragments = cut.setdefault((2 * fragment.first + fragment.rows) * parts // (2 * total), [])
        if fragments and fragments[-1].path == fragment.path:
            fragments.append(_joined(fragments.pop(), fragment))
        else:
            fragments.append(fragment)
    return [cut[part] for part in sorted(cut)]


def _joined(before: Fragment, after: Fragment) -> Fragment:
    """Return two consecutive fragments of a file as one."""
    assert before.groups is not None and after.groups is not None
    return replace(before, rows=before.rows + after.rows, groups=(before.groups[0], after.groups[1]))


def _row_groups(files: Sequence[SourceFile], footers: Sequence[Footer]) -> Iterator[Fragment]:
    """Yield one fragment per row group that has any row."""
    first = 0
    for file, footer in zip(files, footers, strict=True):
        for index, rows in enumerate(footer.groups):
            if rows:
                yield Fragment(path=file.path, first=first, rows=rows, groups=(index, index + 1), footer=footer.digest)
            first += rows
