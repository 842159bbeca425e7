"""What the encodings of all kinds of columns share."""

import itertools
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from dkan_core.utils.schemas import Schema

LATER_KEYS = (("time", None), ("buckets", 0))
"""Keys that earlier versions do not write, with the value that stands for theirs."""


def rising(values: list[float]) -> list[float]:
    """Return values unless one does not rise above the one before."""
    for before, after in itertools.pairwise(values):
        if after <= before:
            raise ValueError(f"must rise from each number to the next, got {before} before {after}")
    return values


class Feature(Schema):
    """Base of what the encoding says of a column: equal where the fields are, whatever arrays are kept beside them."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in type(self).model_fields
        )

    @model_serializer(mode="wrap")
    def _without_later_keys(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Keys at their default are left out, so that data prepared by earlier versions keep their fingerprint.
        return {key: value for key, value in plain(self).items() if (key, value) not in LATER_KEYS}
