"""Blends for tests: what a network is blended with, for any encoding."""

import itertools

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.model.additive_shape import AdditiveShape, Blend, FeatureCuts
from dkan_core.model.architecture import MAX_BINARY_KNOTS


def blend_for(preprocessor: Preprocessor, weight: float = 0.3) -> Blend:
    """Return a blend with a term of every column, and pairs of numbers, of categories, and of both."""
    numeric, coded = len(preprocessor.numeric), len(preprocessor.coded)
    binary = sum(len(feature.knots) <= MAX_BINARY_KNOTS for feature in preprocessor.numeric)
    sizes = {numeric + index: feature.cardinality for index, feature in enumerate(preprocessor.coded)}
    curved = [index for index, feature in enumerate(preprocessor.numeric) if len(feature.knots) > MAX_BINARY_KNOTS]
    cuts: dict[int, tuple[int, ...]] = dict.fromkeys(curved, (1, 70, 128, 190))
    cuts |= {feature: tuple(range(1, min(size, 4))) for feature, size in sizes.items()}
    ends = sorted(cuts)[:2] + sorted(cuts)[-2:]
    pairs = sorted({(first, second) for first, second in itertools.pairwise(ends) if first < second})
    used = sorted({feature for pair in pairs for feature in pair})
    shape = AdditiveShape(
        form="tables",
        upper=(128,) * binary,
        pairs=tuple(pairs),
        binned=tuple(FeatureCuts(feature=feature, cuts=cuts[feature]) for feature in used),
    )
    return Blend(weight=weight, coded=tuple(range(coded)), additive=shape)
