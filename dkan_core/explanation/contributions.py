"""How far each column moved a row's log-odds: expected gradients over the terms of the columns.

A straight line is drawn from each of a few background rows, drawn from the training distribution, to the explained
row, in the space where every column adds a term of its own (``ColumnTerms``). A column is credited with the mean
gradient along the line times the change of its term. That is the method of integrated gradients (Sundararajan et al.
2017, arXiv:1703.01365), averaged over a background (Erion et al. 2021, arXiv:1906.10670). The contributions of all
columns add up to the row's log-odds less the background's mean; the error of the quadrature is spread over them in
proportion to their sizes.

Shape suffixes: N rows, K background rows, F source columns, Z numbers of a term, L labels.
"""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.errors import DataError
from dkan_core.explanation.additive import AdditiveExplainer
from dkan_core.explanation.column_terms import ColumnTerms
from dkan_core.explanation.columns import Column, encode_values, source_columns, sparse_columns
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.base import TabularModel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.utils.arrays import Arrays, Float64
from dkan_core.utils.torch_resources import map_of_threads

# With 16, the strongest column of one row in five differed from that by Shapley values; twice as many changed little
# (``python -m benchmarks.reasons``).
BACKGROUND_ROWS = 32
# Points of the Gauss-Legendre quadrature along a line. With 8, up to one row in seven missed its log-odds by more than
# the tolerance (of twelve labels, every row that of some label); those are done again with 16, and with 32, after which
# no row of three trained models did.
POINTS, FINER_POINTS = 8, (16, 32)
TOLERANCE = 1e-3
# Keeps the shares defined where all contributions are zero.
TINY = 1e-12
# Size of a chunk, in rows times background rows. On a GPU, if it is more, as many as have this many numbers (128 MB) in
# each layer and for all labels, to launch fewer kernels. The last limits the numbers of terms (128 MB).
CHUNK_STATES = 8192
GPU_STATE_NUMBERS = 1 << 25
CHUNK_NUMBERS = 1 << 25


class ContributionExplainer:
    """Splits the log-odds of rows into the contributions of their columns.

    Args:
        model: The model.
        preprocessor: Its encoding, with the distribution of the training rows.
        device: Where to compute.
        background: K, how many background rows.
        labels: Indices of the labels to explain. Default: all; each takes a gradient of its own.

    Raises:
        DataError: The model was written by a version of dkan that did not keep that distribution.
    """

    def __init__(
        self,
        model: TabularModel,
        preprocessor: Preprocessor,
        device: torch.device,
        *,
        background: int = BACKGROUND_ROWS,
        labels: Sequence[int] | None = None,
    ) -> None:
        assert isinstance(model, TabularFastKAN), "the terms of other models are exact (explanation.additive)"
        self.columns = [*source_columns(preprocessor), *sparse_columns(preprocessor)]
        self._terms = ColumnTerms(model, self.columns, device)
        self._labels = list(range(len(model.config.labels)) if labels is None else labels)
        background_KFZ = self._terms.terms(background_rows(preprocessor, self.columns, background))
        self._background_KZF = background_KFZ.transpose(1, 2).contiguous()
        self._start_KZ = background_KFZ.sum(dim=1)
        with torch.no_grad():
            self._baseline_L = self._log_odds(self._start_KZ).mean(dim=0)

    def of_labels(self, indices: Sequence[int]) -> Self:
        """Return the same for some of the labels that it explains, given their indices among these."""
        narrowed = copy.copy(self)
        narrowed._labels = [self._labels[index] for index in indices]
        narrowed._baseline_L = self._baseline_L[[*indices]]
        return narrowed

    @property
    def sources(self) -> list[tuple[str, ...]]:
        """The source column of each contribution."""
        return [(column.name,) for column in self.columns]

    @property
    def baseline(self) -> npt.NDArray[np.float32]:
        """Mean log-odds of the background, ``(L,)``: what the contributions start from."""
        found_L: npt.NDArray[np.float32] = self._baseline_L.cpu().numpy()
        return found_L

    def explain(self, arrays: Arrays) -> npt.NDArray[np.float32]:
        """Return the contribution of each column to the calibrated log-odds of each label, of prepared rows.

        Shape:
            - Output: ``(N, F, L)``
        """
        return self.explain_ids(arrays)[0]

    def explain_ids(self, arrays: Arrays) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the contribution of each column, and what each code of the columns of ids adds by itself.

        A code adds its own term times the mean gradient. A column of ids is credited with the sum over its
        codes less what the background's rows have there.

        Shape:
            - Output: ``(N, F, L)``, ``(N, S, L)``; S is 0 where the model reads no such column
        """
        rows, labels = len(next(iter(arrays.values()))), len(self._baseline_L)
        codes_NS = arrays.get("sparse", np.empty((rows, 0), np.int32))
        found_NFL = np.empty((rows, len(self.columns), labels), dtype=np.float32)
        added_NSL = np.empty((*codes_NS.shape, labels), dtype=np.float32)
        numbers = (len(self.columns) + codes_NS.shape[1]) * self._terms.width
        on_cpu = self._start_KZ.device.type == "cpu"
        threads = torch.get_num_threads() if on_cpu else 1
        states = CHUNK_STATES if on_cpu else max(CHUNK_STATES, GPU_STATE_NUMBERS // self._terms.widest(labels))
        most = min(states // len(self._start_KZ), CHUNK_NUMBERS // (numbers * threads))
        chunk = max(1, min(most, -(-rows // threads)))

        def explain_chunk(start: int) -> None:
            part = slice(start, start + chunk)
            terms_NFZ = self._terms.terms({name: array[part] for name, array in arrays.items()})
            explained_NFL, gradient_NZL = self._explain(terms_NFZ)
            found_NFL[part] = explained_NFL.cpu().numpy()
            if codes_NS.shape[1]:
                of_codes_NSZ = self._terms.of_codes(codes_NS[part])
                added_NSL[part] = torch.matmul(of_codes_NSZ, gradient_NZL).cpu().numpy()

        starts = range(0, rows, chunk)
        with map_of_threads(len(starts)) if on_cpu else nullcontext(map) as each:
            for _ in each(explain_chunk, starts):
                pass
        return found_NFL, added_NSL

    def _log_odds(self, sum_NZ: Tensor) -> Tensor:
        """Return the log-odds ``(N, L)`` of rows whose terms have this sum, of the labels to explain."""
        return self._terms.finish(sum_NZ)[:, self._labels]

    def _explain(self, terms_NFZ: Tensor) -> tuple[Tensor, Tensor]:
        """Return the contributions ``(N, F, L)``, and the mean gradients ``(N, Z, L)``."""
        sum_NZ, background = terms_NFZ.sum(dim=1), len(self._start_KZ)
        with torch.no_grad():
            total_NL = self._log_odds(sum_NZ) - self._baseline_L
        found, gradients = [], []
        for label, mean_KNZ in enumerate(self._mean_gradients(sum_NZ, POINTS)):
            self._refine(mean_KNZ, sum_NZ, total_NL[:, label], label)
            gradients.append(mean_KNZ.mean(dim=0))
            own_NF = torch.einsum("nfz,nz->nf", terms_NFZ, gradients[-1])
            from_NF = mean_KNZ.transpose(0, 1).flatten(1) @ self._background_KZF.flatten(0, 1)
            found.append(own_NF - from_NF / background)
        found_NFL = torch.stack(found, dim=2)
        # Makes the sum exact. The error is large only for rugged models, such as narrow and deep ones.
        share_NFL = functional.normalize(found_NFL.abs() + TINY, p=1.0, dim=1)
        rest_NL = total_NL - found_NFL.sum(dim=1)
        return found_NFL + share_NFL * rest_NL.unsqueeze(1), torch.stack(gradients, dim=2)

    def _refine(self, mean_KNZ: Tensor, sum_NZ: Tensor, total_N: Tensor, label: int) -> None:
        """Replace the mean gradients of rows that miss their log-odds by those of a finer quadrature."""
        change_KNZ = sum_NZ - self._start_KZ.unsqueeze(1)
        for points in FINER_POINTS:
            reached_N = torch.einsum("knz,knz->n", mean_KNZ, change_KNZ) / len(change_KNZ)
            coarse_N = (reached_N - total_N).abs() > TOLERANCE
            if coarse_N.any():
                (finer_KNZ,) = self.of_labels([label])._mean_gradients(sum_NZ[coarse_N], points)
                mean_KNZ[:, coarse_N] = finer_KNZ

    def _mean_gradients(self, sum_NZ: Tensor, points: int) -> list[Tensor]:
        """Return, for each label, the mean gradient on the line from each background row to each row, ``(K, N, Z)``."""
        indices, weights = np.polynomial.legendre.leggauss(points)
        change_KNZ = sum_NZ - self._start_KZ.unsqueeze(1)
        means = [torch.zeros_like(change_KNZ) for _ in self._baseline_L]
        for index, weight in zip((indices + 1) / 2, weights / 2, strict=True):
            on_line = (self._start_KZ.unsqueeze(1) + float(index) * change_KNZ).flatten(0, 1).requires_grad_()
            odds_L = self._log_odds(on_line).sum(dim=0)
            for label, mean_KNZ in enumerate(means):
                (gradient,) = torch.autograd.grad(odds_L[label], on_line, retain_graph=label + 1 < len(means))
                mean_KNZ.add_(gradient.view_as(mean_KNZ), alpha=float(weight))
        return means


def explainer_of(
    model: TabularModel, preprocessor: Preprocessor, device: torch.device, labels: Sequence[int] | None = None
) -> AdditiveExplainer | ContributionExplainer:
    """Return an explainer of a model's log-odds; for an additive model, by its own terms.

    Args:
        model: The model.
        preprocessor: Its encoding, with the distribution of the training rows.
        device: Where to compute.
        labels: Indices of the labels to explain. Default: all.

    Raises:
        DataError: The model was written by a version of dkan that did not keep that distribution.
    """
    if isinstance(model, AdditiveFastKAN):
        return AdditiveExplainer(model, preprocessor, labels)
    return ContributionExplainer(model, preprocessor, device, labels=labels)


def background_rows(preprocessor: Preprocessor, columns: list[Column], count: int = BACKGROUND_ROWS) -> Arrays:
    """Return prepared rows that represent the training data: a Latin hypercube of its columns' distributions.

    Columns are drawn independently, as a model keeps how often each value occurs but no rows; so are a column's ids.
    Every column is spread evenly over its distribution. The draw depends on nothing but the columns' names.

    Raises:
        DataError: It holds no distribution.
    """
    if preprocessor.counts is None:
        raise DataError(
            "the model does not hold the distribution of its training data, which reasons are measured against; "
            "prepare the data and train again with this version of dkan"
        )
    arrays: Arrays = {}
    if preprocessor.numeric:
        arrays["numeric"] = np.empty((count, len(preprocessor.numeric)), preprocessor.numeric_dtype)
    if preprocessor.coded:
        arrays["categorical"] = np.empty((count, len(preprocessor.coded)), np.int32)
    sparse = [_drawn_codes(column, count) for column in columns if column.sparse is not None]
    if sparse:
        arrays["sparse"] = np.concatenate(sparse, axis=1)
    for column in columns:
        if column.sparse is not None:
            continue
        bins_K = _drawn_bins(column.name, preprocessor.counts[column.name], count)
        if column.numeric is None:
            arrays["categorical"][:, column.code_index] = bins_K
            continue
        cells = encode_values(column, bin_values(column.knots)[bins_K])
        arrays["numeric"][:, column.numeric_index] = cells.scores_P
        if cells.codes_P is not None:
            arrays["categorical"][:, column.code_index] = cells.codes_P
    return arrays


def _drawn_bins(name: str, counts: list[int], count: int) -> npt.NDArray[np.int64]:
    """Return a bin for each background row, each as often as its share of the rows says."""
    generator = np.random.Generator(np.random.PCG64([*name.encode()]))
    ranks_K = (generator.permutation(count) + 0.5) / count
    shares = np.cumsum(counts) / max(1, sum(counts))
    return np.searchsorted(shares, ranks_K).clip(max=len(counts) - 1)


def _drawn_codes(column: Column, count: int) -> npt.NDArray[np.int32]:
    """Return random codes of ids for each background row; each code is in as many rows as its share says."""
    assert column.sparse is not None
    generator = np.random.Generator(np.random.PCG64([*column.name.encode()]))
    shares_V = np.array(column.sparse.counts) / column.sparse.sample_rows
    drawn = [np.flatnonzero(generator.random(len(shares_V)) < shares_V) for _ in range(count)]
    codes_KS = np.zeros((count, max(1, *map(len, drawn))), np.int32)
    for codes_S, found in zip(codes_KS, drawn, strict=True):
        codes_S[: len(found)] = found + column.first_code
    return codes_KS


def bin_values(knots: Float64) -> Float64:
    """Return a value of each bin of ``histograms.count_up_to``: missing, up to and including each knot, and above."""
    return np.concatenate([[np.nan], knots, [np.nextafter(knots[-1], np.inf)]])
