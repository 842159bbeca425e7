"""Copying pieces of consecutive rows out of shards into the arrays of a batch, by the native extension.

Shape suffixes: E pieces, S shards, A arrays of a row.
"""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p

import numpy as np
import numpy.typing as npt

from dkan_core.data.format.layout import Field
from dkan_core.native.library import GatherArguments, native_library
from dkan_core.utils.arrays import Arrays, Int64


class PieceCopier:
    """Copies pieces of open shards, all arrays of a row in one pass and without Python.

    Args:
        starts: First row of each shard, and the number of rows at the end, ``(S + 1,)``.
        handles: Descriptors of the files.
        fields: Where the arrays lie in each.
        names: The arrays, in the order in which they are copied.
    """

    def __init__(
        self, starts: Int64, handles: Sequence[int], fields: Sequence[Mapping[str, Field]], names: Sequence[str]
    ) -> None:
        self.names = names
        self._starts = np.ascontiguousarray(starts, np.int64)
        self.offsets_SA = np.array([[shard[name].offset for name in names] for shard in fields], np.int64)
        self.row_bytes_A = np.array([fields[0][name].row_bytes for name in names], np.int64)
        self._handles_S = np.array(handles, np.int64)
        self._memory_S = np.zeros(len(handles), np.uintp)
        self._fixed = self._addresses()
        self._pointers = c_void_p * len(names)
        self._library = native_library()

    def _addresses(self) -> list[int]:
        arrays = (self._starts, self._handles_S, self._memory_S, self.offsets_SA, self.row_bytes_A)
        return [array.ctypes.data for array in arrays]

    def use_memory(self, shards: Sequence[npt.NDArray[np.uint8]]) -> None:
        """From now on copy from arrays with the contents of the files; the caller keeps them alive."""
        self._memory_S = np.array([shard.ctypes.data for shard in shards], np.uintp)
        self._fixed = self._addresses()

    def copy(self, pieces: Int64, out: Arrays, threads: int) -> bool:
        """Copy pieces; return False if Python must do it: there is no extension, or a piece is unreadable, to say why.

        Args:
            pieces: First row of each, and the one past its last, ``(E, 2)``; none crosses a shard.
            out: The arrays of the batch, each contiguous.
            threads: How many may copy.
        """
        if self._library is None:
            return False
        pieces = np.ascontiguousarray(pieces)
        targets = self._pointers(*(out[name].ctypes.data for name in self.names))
        counts = len(pieces), len(self._handles_S), len(self.names)
        arguments = GatherArguments(pieces.ctypes.data, *self._fixed, ctypes.addressof(targets), *counts)
        return int(self._library.dkan_gather(byref(arguments), threads)) < 0
