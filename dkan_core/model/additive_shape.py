"""Where the terms of an additive model lie in its one table: a range of rows for each feature, then for each pair.

Features are counted as in the prepared arrays: the numeric ones, then the coded ones.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dkan_core.utils.schemas import Schema

# The codes of stored scores: 0 is missing, the others stand for scores from -3 to 3.
SCORE_CODES = 256
# Missing, the lower value, the upper one: a curve of two values needs no more.
BINARY_CODES = 3
# Basis functions of each side of a pair: coarse, so that cells of few rows learn from those around them.
PAIR_FUNCTIONS = 6
# By falling frequency: rarer categories share a row.
MAX_CATEGORIES = 4096

Index = Annotated[int, Field(ge=0)]
Cuts = Annotated[tuple[Annotated[int, Field(ge=1, lt=MAX_CATEGORIES)], ...], Field(max_length=SCORE_CODES)]


class FeatureCuts(Schema):
    """Where a feature that is part of a pair is binned."""

    feature: Index
    """Numeric features first, then coded ones."""

    cuts: Cuts
    """The first code of each bin but the first bin, rising."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(after <= before for before, after in itertools.pairwise(self.cuts)):
            raise ValueError("cuts: must rise from each number to the next")
        return self


class AdditiveShape(Schema):
    """The part of an architecture that additive models alone have."""

    form: Literal["curves", "tables"]
    """"curves": as it is trained, with a basis of several resolutions; "tables": one number for each code and member,
    purified, with the distribution of the training data."""

    upper: tuple[Annotated[int, Field(ge=1, lt=SCORE_CODES)], ...] = ()
    """For each binary feature the first code of a stored score that counts as its upper value."""

    monotone: tuple[tuple[Index, Literal[-1, 1]], ...] = ()
    """Numeric features along which the log-odds never fall (1) or never rise (-1)."""

    pairs: tuple[tuple[Index, Index], ...] = ()
    """Features whose joint bin has a weight of its own."""

    binned: tuple[FeatureCuts, ...] = ()
    """The bins of the features that are part of a pair."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        known = {each.feature for each in self.binned}
        if len(known) < len(self.binned):
            raise ValueError("binned: holds a feature twice")
        if len({*self.pairs}) < len(self.pairs):
            raise ValueError("pairs: holds a pair twice")
        for first, second in self.pairs:
            if first >= second or not {first, second} <= known:
                raise ValueError(f"pairs: ({first}, {second}) must rise and have bins")
        if {feature for feature, _ in self.monotone} & {feature for pair in self.pairs for feature in pair}:
            raise ValueError("monotone: such a feature is part of no pair")
        return self

    def as_tables(self) -> Self:
        """Return the same terms in the form "tables"."""
        return self.model_copy(update={"form": "tables"})

    def cuts_of(self, feature: int) -> tuple[int, ...]:
        """Return where the bins of a feature begin, but for the first one."""
        return next(each.cuts for each in self.binned if each.feature == feature)


class Blend(Schema):
    """The additive model that a network is blended with."""

    weight: Annotated[float, Field(gt=0, lt=1)]
    """Weight of its log-odds; the network's log-odds have the rest of 1."""

    coded: tuple[Index, ...]
    """Coded features with a term of their own."""

    additive: AdditiveShape
    """Its pairs and bins; of the form "tables"."""

    ids: bool = False
    """Whether it has a number for each code of the sparse columns."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.additive.form != "tables":
            raise ValueError("additive.form: must be tables")
        return self


@dataclass(frozen=True, kw_only=True)
class Term:
    """Rows of the table that belong together."""

    first: int
    """The first row."""

    size: int
    features: tuple[int, ...]
    """One, or the two of a pair."""

    shape: tuple[int, ...]
    """Codes of the one feature; bins of the two."""

    @property
    def rows(self) -> slice:
        """The range of rows."""
        return slice(self.first, self.first + self.size)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The terms of an additive model, in the order of the table's rows."""

    curved: tuple[Term, ...]
    """Numeric features with a row for each code of a stored score: these come first."""

    binary: tuple[Term, ...]
    """Numeric features of two values."""

    coded: tuple[Term, ...]
    """Coded features, in the order of the architecture's groups."""

    pairs: tuple[Term, ...]

    @property
    def mains(self) -> tuple[Term, ...]:
        """The terms of one feature."""
        return (*self.curved, *self.binary, *self.coded)

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms."""
        return (*self.mains, *self.pairs)

    @property
    def size(self) -> int:
        """Rows of the table."""
        return sum(term.size for term in self.terms)


def layout_of(
    num_numeric: int, binary: Sequence[int], cardinalities: Sequence[int], coded: Sequence[int], shape: AdditiveShape
) -> Layout:
    """Return where terms lie.

    Args:
        num_numeric: Numeric features.
        binary: Numeric features of two values.
        cardinalities: Codes of each coded feature.
        coded: Coded features that have a term.
        shape: Pairs and their bins.

    >>> shape = AdditiveShape(form="curves", upper=(128,))
    >>> [(term.first, term.size, term.features) for term in layout_of(2, (0,), (5, 9), (1,), shape).terms]
    [(0, 256, (1,)), (256, 3, (0,)), (259, 9, (3,))]
    """
    of_two = {*binary}
    curved = [feature for feature in range(num_numeric) if feature not in of_two]
    sizes: dict[tuple[int, ...], tuple[int, ...]] = {(feature,): (SCORE_CODES,) for feature in curved}
    sizes |= {(feature,): (BINARY_CODES,) for feature in binary}
    sizes |= {(num_numeric + index,): (min(cardinalities[index], MAX_CATEGORIES),) for index in coded}
    bins: Mapping[int, int] = {each.feature: len(each.cuts) + 1 for each in shape.binned}
    sizes |= {pair: (bins[pair[0]], bins[pair[1]]) for pair in shape.pairs}
    starts = itertools.accumulate(map(math.prod, sizes.values()), initial=0)
    terms = [
        Term(first=first, size=math.prod(each), features=features, shape=each)
        for first, (features, each) in zip(starts, sizes.items(), strict=False)
    ]
    stops = [*itertools.accumulate((len(curved), len(binary), len(coded), len(shape.pairs)), initial=0)]
    parts = [tuple(terms[start:stop]) for start, stop in itertools.pairwise(stops)]
    return Layout(curved=parts[0], binary=parts[1], coded=parts[2], pairs=parts[3])
