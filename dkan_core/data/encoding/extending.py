"""Two encodings compared column by column, and one that knows more columns than another."""

from dataclasses import dataclass

import pyarrow as pa

from dkan_core.data.encoding.histograms import count_values
from dkan_core.data.encoding.preprocessor import CategoryFeature, NumericFeature, Preprocessor, ValueFeature
from dkan_core.data.encoding.sparse import SparseFeature
from dkan_core.utils.messages import listed_names

Key = tuple[str, str]
"""A feature's kind, and its name: a column of numbers may be a numeric feature and also have value codes."""

Encoded = NumericFeature | CategoryFeature | ValueFeature | SparseFeature


@dataclass(frozen=True)
class EncodingDifference:
    """What of an encoding another one has: names of features, each once."""

    kept: list[str]
    """Encoded in the same way."""

    changed: list[str]
    """Encoded in another way."""

    lost: list[str]
    """Of the old encoding alone."""

    added: list[str]
    """Of the new encoding alone."""

    def differing(self) -> str:
        """Return what differs, as a message may end."""
        parts = {"another encoding of": self.changed, "without": self.lost}
        texts = [f"{what} {listed_names(names)}" for what, names in parts.items() if names]
        return f" ({', '.join(texts)})" if texts else ""


def compare_encodings(old: Preprocessor, new: Preprocessor) -> EncodingDifference:
    """Return what two encodings have in common, by the names of features."""
    before, after = _by_name(old), _by_name(new)
    both = [name for name in before if name in after]
    return EncodingDifference(
        kept=[name for name in both if before[name] == after[name]],
        changed=[name for name in both if before[name] != after[name]],
        lost=[name for name in before if name not in after],
        added=[name for name in after if name not in before],
    )


def features_by_key(encoding: Preprocessor) -> dict[Key, Encoded]:
    """Return the features of an encoding, in its order: numeric, coded and sparse ones."""
    found: dict[Key, Encoded] = {("numeric", feature.name): feature for feature in encoding.numeric}
    found |= {(feature.kind, feature.name): feature for feature in encoding.coded}
    return found | {("sparse", feature.name): feature for feature in encoding.sparse}


def extended_encoding(base: Preprocessor, fitted: Preprocessor) -> Preprocessor:
    """Return an encoding with the features of another one, of other columns, behind its own."""
    both = {name: [*getattr(base, name), *getattr(fitted, name)] for name in ("numeric", "coded", "sparse")}
    return base.model_copy(update={**both, "counts": {**(base.counts or {}), **(fitted.counts or {})}})


def with_counts(encoding: Preprocessor, sample: pa.Table, where: str) -> Preprocessor:
    """Return an encoding with the distribution of some rows instead of those that it was fitted on."""
    counts = count_values(sample, encoding, where)
    return encoding.model_copy(update={"counts": {name: rows.tolist() for name, rows in counts.items()}})


def _by_name(encoding: Preprocessor) -> dict[str, list[object]]:
    """Return the features of each name."""
    found: dict[str, list[object]] = {}
    for (_, name), feature in features_by_key(encoding).items():
        found.setdefault(name, []).append(feature)
    return found
