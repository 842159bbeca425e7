"""Types of columns: what values are read as, also where files differ, and what may be in them."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.data.source.folders import FOLDER_TEXT, folder_values
from dkan_core.errors import DataError
from dkan_core.utils.messages import flag

# What lists of integers are read as.
ID_LIST = pa.large_list(pa.int64())


def column_types(path: str, schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the type that each column's values are read as, with those in the names of folders.

    Raises:
        DataError: Two columns have the same name.
    """
    name, count = Counter(schema.names).most_common(1)[0] if schema.names else ("", 0)
    if count > 1:
        raise DataError(f"{path}: column {name!r} occurs {count} times; expected each name once")
    in_folders = dict.fromkeys(folder_values(path), FOLDER_TEXT)
    return {
        **{field.name: _plain_type(field.type) for field in schema},
        **{name: kind for name, kind in in_folders.items() if name not in schema.names},
    }


def value_types(path: str, parquet: pq.ParquetFile, wanted: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return column types for a known encoding: where it wants text, floats without any value get the null type.

    Frames write a category column without any value as floats.

    Args:
        path: The file.
        parquet: The same.
        wanted: What the columns that are read are to be.

    Raises:
        DataError: Two columns have the same name.
    """
    types = column_types(path, parquet.schema_arrow)
    texts = {name for name, kind in wanted.items() if pa.types.is_string(kind)}
    floats = {name for name in texts if name in types and pa.types.is_floating(types[name])}
    return types | dict.fromkeys(without_values(parquet.metadata, floats), pa.null())


def without_values(footer: pq.FileMetaData, names: Collection[str]) -> set[str]:
    """Return which of some columns hold nothing but nulls, as the statistics in a file say."""
    found = set()
    for name, index in flat_columns(footer, names).items():
        chunks = (footer.row_group(group).column(index) for group in range(footer.num_row_groups))
        if all(map(_has_no_value, chunks)):
            found.add(name)
    return found


def constant_values(footer: pq.FileMetaData, earlier: Mapping[str, frozenset[object]]) -> dict[str, frozenset[object]]:
    """Return which of some columns hold no two different numbers or booleans, as the statistics in a file say.

    Args:
        footer: Of the file.
        earlier: By column, the value in earlier files; empty where these hold only nulls.

    Returns:
        By column, the value in all of these files.
    """
    found = {}
    for name, index in flat_columns(footer, earlier).items():
        chunks = (footer.row_group(group).column(index) for group in range(footer.num_row_groups))
        values = earlier[name].union(*map(_ends, chunks))
        if len(values) < 2:
            found[name] = values
    return found


def _ends(chunk: pq.ColumnChunkMetaData) -> frozenset[object]:
    if _has_no_value(chunk):
        return frozenset()
    statistics = chunk.statistics
    # Statistics of text may be truncated.
    is_known = statistics is not None and statistics.has_min_max and "BYTE_ARRAY" not in chunk.physical_type
    return frozenset({statistics.min, statistics.max} if is_known else {False, True})


def flat_columns(footer: pq.FileMetaData, names: Collection[str]) -> dict[str, int]:
    """Return the index in a footer of some columns; those that are nested or not in the file are left out."""
    columns = ((index, footer.schema.column(index)) for index in range(footer.num_columns if names else 0))
    # A nested field's path may equal the name of a top-level column with a dot in it.
    return {column.name: index for index, column in columns if column.name in names and column.path == column.name}


def _has_no_value(chunk: pq.ColumnChunkMetaData) -> bool:
    return bool(not chunk.num_values or (chunk.statistics and chunk.statistics.null_count == chunk.num_values))


def with_common(types: dict[str, pa.DataType], common: Mapping[str, str] | None) -> dict[str, pa.DataType]:
    """Return a file's types with those of columns that are read as another, as ``Sources.common`` has them."""
    return {**types, **{name: _by_alias(alias) for name, alias in (common or {}).items()}}


# Cached: it is called for each column of each file, a million times for many small files.
@lru_cache(maxsize=256)
def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that values of ``kind`` are read as: dictionaries, large strings, views and JSON are strings."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    # Arrow can neither count nor hash narrow decimals.
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    if is_id_list(kind):
        return ID_LIST
    # Older versions of Arrow read the same column as strings.
    return pa.string() if is_text(kind) or isinstance(kind, pa.JsonType) else kind


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds bytes."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(fits(kind) for fits in kinds)


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds UUIDs, which are stored as 16 bytes."""
    return isinstance(kind, pa.UuidType)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds integers, floats or decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_whole(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds whole numbers: integers, or decimals without a fraction."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def is_id_list(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds a list of integers in each row, or none but empty lists."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(fits(kind) for fits in kinds):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type))


def is_sparse(kind: pa.DataType) -> bool:
    """Return whether each row of a column of this type names some of many ids: in a list, or as ones of a vector."""
    return is_id_list(kind) or bool(pa.types.is_fixed_size_binary(kind))


def common_type(
    name: str,
    kind: pa.DataType,
    earlier: pa.DataType,
    path: str,
    first: str,
    zone: str | None,
    *,
    is_label: bool = False,
    is_feature: bool = False,
) -> pa.DataType:
    """Return the type that holds a column's values in both of two files.

    Writers choose a type by the values at hand: integers of which one is missing are floats to pandas, and a column
    without any value has no type.

    Args:
        name: The column.
        kind: Its type in one file.
        earlier: Its type in the other.
        path: The one file.
        first: The other.
        zone: The time zone that times of two zones are read in; None where it is not known.
        is_label: Whether it is a label: true and false are 1 and 0 there, while a feature of these is a category.
        is_feature: Whether it may be read as a category.

    Raises:
        DataError: There is none.
    """
    differs = f"{path}: column {name!r} is {kind}; in {first} it is {earlier}"
    if _is_zoned(kind) and _is_zoned(earlier) and kind.tz != earlier.tz:
        if zone is None:
            raise DataError(
                f"{differs}; convert both to one time zone: month, day, weekday and hour are features, and depend on it"
            )
        kind, earlier = (pa.timestamp(each.unit, zone) for each in (kind, earlier))
    if is_label:
        kind, earlier = (pa.int8() if pa.types.is_boolean(each) else each for each in (kind, earlier))
    if FOLDER_TEXT not in (kind, earlier):
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError, ValueError):
            schemas = [pa.schema([(name, each)]) for each in (earlier, kind)]
            common = pa.unify_schemas(schemas, promote_options="permissive").field(name).type
            fitting = (is_number, pa.types.is_timestamp, pa.types.is_date, pa.types.is_duration, pa.types.is_time)
            alike = any(fits(earlier) and fits(kind) for fits in fitting)
            alike = alike or pa.types.is_null(earlier) or pa.types.is_null(kind)
            # Decimals become float64 features whatever their digits; as float32, decimals would lose digits.
            common = pa.float64() if any(map(pa.types.is_decimal, (earlier, kind))) else common
            if alike and _by_alias(str(common)) == common:
                return common
    if any(map(is_number, (kind, earlier))) and any(map(pa.types.is_boolean, (kind, earlier))):
        raise DataError(f"{differs}; write it in all files as a number, or as a boolean, which is a category")
    is_code = is_feature and any(map(pa.types.is_integer, (kind, earlier))) and any(map(is_text, (kind, earlier)))
    read = f", or read it as a category ({flag('categorical', name)})" if is_code else ""
    raise DataError(f"{differs}; write all files with one type{read}")


def _is_zoned(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds times with a time zone."""
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def _by_alias(alias: str) -> pa.DataType:
    """Return the type with this ``str`` form; pyarrow's aliases lack time zones, lists and bit vectors."""
    if alias == str(ID_LIST):
        return ID_LIST
    if bits := re.fullmatch(r"fixed_size_binary\[(\d+)\]", alias):
        return pa.binary(int(bits[1]))
    zoned = re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", alias)
    kind: pa.DataType = pa.timestamp(zoned[1], zoned[2]) if zoned else pa.type_for_alias(alias)
    return kind
