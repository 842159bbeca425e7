"""Suggests columns with two values as labels, if a command is given none."""

from collections.abc import Sequence
from typing import Any

from dkan_core.data.decimals import to_float64
from dkan_core.errors import ConfigError

# Rows of the first file to search for labels, and columns to show.
LOOKED_AT, SHOWN = 20_000, 8


def settings_with_label(settings: dict[str, Any], config: str | None, sources: Sequence[str]) -> dict[str, Any]:
    """Return the settings; without a label, tell which columns could be one.

    Args:
        settings: The options that were given.
        config: A file with further ones; it may name the label.
        sources: Files, folders, globs or fsspec URIs.

    Raises:
        ConfigError: No label is named, nor a model that knows it.
    """
    if config is not None or settings.get("label") or settings.get("like"):
        return settings
    candidates = label_candidates(sources)
    found = f"; columns of two values: {', '.join(candidates)}" if candidates else ""
    raise ConfigError(f"label: name at least one label column with --label{found}")


def label_candidates(sources: Sequence[str]) -> list[str]:
    """Return the columns of the first file with two values in its first rows: 0 and 1, or others to choose from.

    Raises:
        DataError: There is no such file, or it cannot be read.
    """
    import shlex

    import pyarrow as pa
    import pyarrow.compute as pc

    from dkan_core.data.source.column_types import column_types, is_number, is_text
    from dkan_core.data.source.files import find_parquet
    from dkan_core.data.source.parquet_files import open_parquet
    from dkan_core.data.source.reading import open_file, read_batches

    path = find_parquet(sources)[0]
    shown = path.rstrip("/").rpartition("/")[2]
    types = column_types(path, open_parquet(path).schema_arrow)
    names = [name for name, kind in types.items() if is_number(kind) or is_text(kind) or pa.types.is_boolean(kind)]
    found: list[str] = []
    texts: list[str] = []
    for batch in read_batches(open_file(path), names):
        for name, column in zip(names, batch.slice(0, LOOKED_AT).columns, strict=True):
            if is_text(column.type):
                pair = pc.unique(column.drop_null()).to_pylist()
                texts += [f"{name} (--positive {' or '.join(map(shlex.quote, pair))})"] * (len(pair) == 2)
                continue
            numbers = to_float64(column)
            # NaN in a label means, like null, that it was not measured.
            values = numbers.filter(pc.is_finite(numbers))
            pair = sorted(pc.unique(values).to_pylist())
            if pair == [0.0, 1.0]:
                found.append(f"{name} ({pc.mean(values).as_py():.1%} are 1 in {shown})")
            elif len(pair) == 2:
                texts.append(f"{name} (--positive {' or '.join(f'{value:g}' for value in pair)})")
        break
    found += texts
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return found[:SHOWN] + more
