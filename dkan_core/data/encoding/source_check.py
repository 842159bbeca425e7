"""Whether files have the columns that an encoding reads."""

import pyarrow as pa

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.source.column_types import is_number, is_text, is_whole
from dkan_core.data.source.folders import FOLDER_TEXT
from dkan_core.data.source.times import expected, fits_zone, is_duration
from dkan_core.errors import DataError
from dkan_core.utils.messages import listed_names, spelt_alike


def check_features(
    preprocessor: Preprocessor,
    types: dict[str, pa.DataType],
    where: str,
    *,
    because: str = "the model was trained with",
) -> None:
    """Check that rows have the columns that an encoding reads.

    Args:
        preprocessor: The encoding.
        types: Type of each column of the rows.
        where: The rows, as messages should call them.
        because: Why a column is needed, as messages say it.

    Raises:
        DataError: A column is missing, or of another kind than the encoding takes.
    """
    missing = [name for name in preprocessor.columns if name not in types]
    if missing:
        also = f" (also missing: {listed_names(missing[1:])})" if len(missing) > 1 else ""
        known = {*preprocessor.columns}
        alike = spelt_alike(missing[0], [name for name in types if name not in known])
        renamed = "" if alike is None else f"rename {alike!r}, if it is that; "
        raise DataError(
            f"{where}: column {missing[0]!r} is missing; {because} it{also}; {renamed}where its values are not known, "
            "give nulls"
        )
    numeric = {feature.name for feature in preprocessor.numeric}
    for name, zone in preprocessor.times.items():
        if types[name] != FOLDER_TEXT and not fits_zone(types[name], zone):
            raise DataError(f"{where}: column {name!r} is {types[name]}; {because} {expected(zone)} there")
    for feature in preprocessor.sparse:
        kind = types[feature.name]
        if not feature.fits(kind):
            raise DataError(f"{where}: column {feature.name!r} is {kind}; {because} {feature.expected} there")
    others = {*preprocessor.times, *(feature.name for feature in preprocessor.sparse)}
    coded = integer_categories(preprocessor)
    for name in (name for name in preprocessor.columns if name not in others):
        integers = (is_whole, pa.types.is_floating) if name in coded else ()
        kinds = (is_number, is_duration) if name in numeric else (is_text, pa.types.is_boolean, *integers)
        # Text in the names of folders is read as what is needed, if it can be.
        if types[name] != FOLDER_TEXT and not any(fits(types[name]) for fits in (*kinds, pa.types.is_null)):
            texts = "integers or strings" if name in coded else "strings or booleans"
            wanted = "numbers" if name in numeric else f"categories ({texts})"
            raise DataError(f"{where}: column {name!r} is {types[name]}; {because} {wanted} there")


def integer_categories(preprocessor: Preprocessor) -> set[str]:
    """Return the columns of categories that may be given as integers."""
    return {feature.name for feature in preprocessor.category_features if feature.takes_integers}
