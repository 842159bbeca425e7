"""Pieces of the source that are read on their own, and their cut into parts of about equal rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dkan_core.data.schema import SourceFile


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive row groups of a source file."""

    path: str

    first: int
    """Number of the first row, counted through all source files."""

    rows: int

    groups: tuple[int, int] | None = None
    """The first row group, and the one past the last; None is the whole file."""

    file: SourceFile | None = None
    """What the file is to be still when its rows were read; None where somebody else looks."""


def whole_files(files: Sequence[SourceFile]) -> list[Piece]:
    """Return a piece a file."""
    pieces, first = [], 0
    for file in files:
        pieces.append(Piece(path=file.path, first=first, rows=file.rows, file=file))
        first += file.rows
    return pieces


def cut_parts(files: Sequence[SourceFile], groups: Sequence[Sequence[int]], parts: int) -> list[list[Piece]]:
    """Cut the rows into parts, at bounds of row groups, none of them empty.

    Args:
        files: Source files in a fixed order.
        groups: Rows of each file's row groups.
        parts: How many parts are wanted; where there are fewer row groups, fewer come.

    >>> a, b = (SourceFile(path=path, rows=40, bytes=0, modified="") for path in "ab")
    >>> for part in cut_parts([a, b], [[20, 20], [40]], 2):
    ...     print([(piece.path, piece.first, piece.groups) for piece in part])
    [('a', 0, (0, 2))]
    [('b', 40, (0, 1))]
    """
    total = sum(file.rows for file in files)
    cut: dict[int, list[Piece]] = {}
    for file, index, first, rows in _row_groups(files, groups):
        # The part in which the middle of the row group lies.
        pieces = cut.setdefault((2 * first + rows) * parts // (2 * total), [])
        if pieces and pieces[-1].path == file.path and pieces[-1].groups is not None:
            last = pieces.pop()
            assert last.groups is not None
            pieces.append(
                Piece(path=file.path, first=last.first, rows=last.rows + rows, groups=(last.groups[0], index + 1))
            )
        else:
            pieces.append(Piece(path=file.path, first=first, rows=rows, groups=(index, index + 1)))
    return [cut[part] for part in sorted(cut)]


def _row_groups(
    files: Sequence[SourceFile], groups: Sequence[Sequence[int]]
) -> Iterator[tuple[SourceFile, int, int, int]]:
    """Yield file, index, number of the first row and rows of each row group that has any."""
    first = 0
    for file, sizes in zip(files, groups, strict=True):
        for index, rows in enumerate(sizes):
            if rows:
                yield file, index, first, rows
            first += rows
