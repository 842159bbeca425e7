"""The terms of an additive model: which columns are monotone, where columns are binned, and which pairs pay.

Pairs are searched as crosses are (``feature_crosses``), but over all columns, numeric ones in bins.

Shape suffixes: N rows.
"""

import itertools

import numpy as np
import numpy.typing as npt
import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.encoding.preprocessor import Preprocessor, quantize
from dkan_core.model.additive_shape import SCORE_CODES, AdditiveShape, FeatureCuts
from dkan_core.model.architecture import MAX_BINARY_KNOTS
from dkan_core.model.decoding import score_codes
from dkan_core.training.setup.feature_crosses import (
    MIN_CROSS_GAIN,
    CodedColumn,
    Group,
    Residuals,
    coded_column,
    joint_column,
    worth,
)
from dkan_core.training.setup.monotone import parse_monotone, warn_of_calendar
from dkan_core.utils.arrays import Arrays, UInt16

# Bins of a number and codes of a category in a pair, at most.
NUMERIC_BINS, CATEGORY_BINS = 16, 32
# Most columns of which all pairs are searched, as their number grows with the square. Of more columns, the best ones.
MAX_PAIRED = 48
# Best pairs that are judged again after each one that is taken.
MAX_SHORTLIST = 32
MAX_AUTO_PAIRS = 24


def choose_additive(
    preprocessor: Preprocessor, sample: Arrays, config: ResolvedTrainConfig, auto_pairs: int | None
) -> tuple[tuple[Group, ...], AdditiveShape]:
    """Return the coded features with a term of their own, and the rest of an additive model's shape.

    Args:
        preprocessor: The encoding.
        sample: Shuffled rows of the train split, as ``feature_crosses.search_sample`` returns them.
        config: Which columns are to be monotone, and how many pairs there are to be.
        auto_pairs: How many pairs there are with ``pairs="auto"``; None: as many as predict unseen rows better.

    Raises:
        ConfigError: ``monotone`` names no numeric column.
    """
    monotone = parse_monotone(config.monotone, [each.name for each in preprocessor.numeric])
    warn_of_calendar(config.monotone, preprocessor)
    names = {preprocessor.numeric[feature].name for feature, _ in monotone}
    # A weight for each value could break a curve's monotonicity.
    coded = [index for index, each in enumerate(preprocessor.coded) if each.name not in names]
    pairs: list[Group] = []
    binned: dict[int, tuple[int, ...]] = {}
    if config.pairs != "0":
        binned = _cuts(preprocessor, sample, {feature for feature, _ in monotone})
        limit = auto_pairs if config.pairs == "auto" else int(config.pairs)
        pairs = choose_pairs(_residuals(preprocessor, sample), _bins(preprocessor, sample, binned), limit)
    used = sorted({feature for pair in pairs for feature in pair})
    shape = AdditiveShape(
        form="curves",
        upper=tuple(_upper_codes(preprocessor).values()),
        monotone=monotone,
        pairs=tuple((first, second) for first, second in pairs),
        binned=tuple(FeatureCuts(feature=feature, cuts=binned[feature]) for feature in used),
    )
    return tuple((index,) for index in coded), shape


def choose_pairs(residuals: list[Residuals], columns: dict[int, CodedColumn], limit: int | None) -> list[Group]:
    """Return the best pair, the best one on top of that, and so on.

    Args:
        residuals: What the columns alone leave unexplained, by label.
        columns: The columns to pair, by feature.
        limit: How many pairs; None: as long as unseen rows are predicted better.
    """
    if not residuals:
        return []
    # A pair with a column of one value would say no more than the other column alone.
    varied = {feature: column for feature, column in columns.items() if np.ptp(column.codes)}
    alone = {feature: sum(each.main_gain(column) for each in residuals) for feature, column in varied.items()}
    kept = sorted(sorted(alone, key=lambda feature: -alone[feature])[:MAX_PAIRED])

    def gain(pair: Group) -> float:
        return worth(residuals, joint_column(columns, pair))

    gains = {pair: gain(pair) for pair in itertools.combinations(kept, 2)}
    shortlist = sorted(gains, key=lambda pair: -gains[pair])[: max(MAX_SHORTLIST, limit or 0)]
    if limit is not None and len(shortlist) <= limit:
        return sorted(shortlist)
    taken: list[Group] = []
    while shortlist and len(taken) < (MAX_AUTO_PAIRS if limit is None else limit):
        best = max(shortlist, key=gain)
        if limit is None and gain(best) < MIN_CROSS_GAIN:
            break
        taken.append(best)
        shortlist.remove(best)
        for each in residuals:
            each.absorb(joint_column(columns, best))
    return sorted(taken)


def _upper_codes(preprocessor: Preprocessor) -> dict[int, int]:
    """Return the first upper code of each feature of at most two values: codes belong to the nearer value."""
    found = {}
    for index, feature in enumerate(preprocessor.numeric):
        if len(feature.knots) <= MAX_BINARY_KNOTS:
            codes = quantize(np.array(feature.scores, np.float32), "uint8").astype(int)
            found[index] = int(min(SCORE_CODES - 1, (codes[0] + codes[-1]) // 2 + 1))
    return found


def _cuts(preprocessor: Preprocessor, sample: Arrays, monotone: set[int]) -> dict[int, tuple[int, ...]]:
    """Return for each feature that may be part of a pair where its bins begin, except for the first bin."""
    cuts: dict[int, tuple[int, ...]] = {}
    for index, feature in enumerate(preprocessor.numeric):
        if index in monotone:
            continue
        if len(feature.knots) <= MAX_BINARY_KNOTS:
            cuts[index] = (1, 2)
            continue
        cuts[index] = quantile_cuts(np.bincount(_codes(sample, index), minlength=SCORE_CODES), NUMERIC_BINS)
    for index, coded in enumerate(preprocessor.coded):
        if coded.kind == "category":
            cuts[len(preprocessor.numeric) + index] = tuple(range(1, min(coded.cardinality, CATEGORY_BINS)))
    return cuts


def quantile_cuts(count_C: npt.NDArray[np.int64], bins: int) -> tuple[int, ...]:
    """Return where bins of about as many rows each begin, except for the first one, which holds missing values.

    Args:
        count_C: Rows with each code of a stored score.
        bins: Number of bins; there are fewer where one code has the rows of several.

    >>> quantile_cuts(np.array([7, 10, 10, 10, 10]), 2), quantile_cuts(np.array([0, 90, 5, 5]), 4)
    ((1, 3), (1, 2))
    """
    below_C = np.cumsum(count_C[1:])
    ranks = (np.arange(1, bins) / bins * (below_C[-1] - 1)).astype(np.int64)
    last = np.searchsorted(below_C, ranks, side="right") + 1
    return tuple(sorted({1, *(code + 1 for code in last.tolist() if code < len(below_C))}))


def _bins(preprocessor: Preprocessor, sample: Arrays, cuts: dict[int, tuple[int, ...]]) -> dict[int, CodedColumn]:
    """Return the bins of the sampled rows, by feature."""
    upper, found = _upper_codes(preprocessor), {}
    for feature, edges in cuts.items():
        if feature < len(preprocessor.numeric):
            codes = _codes(sample, feature)
            codes = np.where(codes == 0, 0, np.where(codes >= upper[feature], 2, 1)) if feature in upper else codes
        else:
            codes = sample["categorical"][:, feature - len(preprocessor.numeric)].astype(np.int64)
        found[feature] = CodedColumn(np.searchsorted(edges, codes, side="right").astype(np.uint16), len(edges) + 1)
    return found


def _codes(sample: Arrays, feature: int) -> UInt16:
    """Return the codes of the stored scores of a numeric feature."""
    stored_N = torch.from_numpy(np.ascontiguousarray(sample["numeric"][:, feature]))
    return score_codes(stored_N).numpy().astype(np.uint16)


def _residuals(preprocessor: Preprocessor, sample: Arrays) -> list[Residuals]:
    """Return what terms of single columns leave unexplained, by label."""
    columns = [
        coded_column(codes, feature.cardinality)
        for codes, feature in zip(sample.get("categorical", np.empty((0, 0))).T, preprocessor.coded, strict=True)
    ]
    for feature in range(len(preprocessor.numeric)):
        columns.append(CodedColumn(_codes(sample, feature) // 4, SCORE_CODES // 4))
    return Residuals.from_rows(columns, sample)
