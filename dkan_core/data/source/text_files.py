"""Files of comma-separated values, which are not read: how to make Parquet of them."""

import json
import shlex
from pathlib import Path

from dkan_core.errors import DataError

# As they are most often given instead of Parquet.
TEXTS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")


def refuse_text(source: str) -> None:
    """Raise DataError where a name is that of a text file; what is in it is not looked at."""
    if source.lower().endswith(TEXTS):
        raise DataError(f"{source}: is text, not Parquet; convert it first: {_conversion(source)}")


def csv_hint(source: str) -> str:
    """Return how to convert text files in a folder, if there are any."""
    folder = Path(source)
    texts = (
        sorted(str(path) for path in folder.iterdir() if path.name.lower().endswith(TEXTS)) if folder.is_dir() else []
    )
    return f"; convert the text files first, such as {texts[0]}: {_conversion(texts[0])}" if texts else ""


def _conversion(source: str) -> str:
    """Return a command that makes Parquet of a file of comma-separated values."""
    suffix = next(each for each in TEXTS if source.lower().endswith(each))
    options = ', parse_options=c.ParseOptions(delimiter="\\t")' if suffix.startswith(".tsv") else ""
    # Strings of JSON are those of Python.
    read, made = (json.dumps(name, ensure_ascii=False) for name in (source, f"{source[: -len(suffix)]}.parquet"))
    code = f"import pyarrow.csv as c, pyarrow.parquet as p; p.write_table(c.read_csv({read}{options}), {made})"
    return f"python -c {shlex.quote(code)}"
