"""CSV and TSV files, which are not read: how to convert them to Parquet."""

import codecs
import json
import re
import shlex
import zlib
from contextlib import suppress
from pathlib import Path

from dkan_core.errors import DataError
from dkan_core.utils.storage.paths import filesystem, is_remote

# The text files that are most often given instead of Parquet.
TEXTS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
SEPARATORS = ",;\t|"
# Enough bytes for the header and some rows of wide data.
BEGIN_BYTES = 1 << 18
QUOTED = re.compile(r'"[^"]*"')
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")


def text_error(source: str) -> DataError:
    """Return the error for a text file, with a command that converts it."""
    return DataError(f"{source}: is text, not Parquet; convert it first: {_conversion(source)}")


def csv_hint(source: str) -> str:
    """Return how to convert text files in a folder, if there are any."""
    folder = Path(source)
    texts = (
        sorted(str(path) for path in folder.iterdir() if path.name.lower().endswith(TEXTS)) if folder.is_dir() else []
    )
    return f"; convert the text files first, such as {texts[0]}: {_conversion(texts[0])}" if texts else ""


def _conversion(source: str) -> str:
    """Return a command that makes Parquet of a file of separated values, in this folder if that is in a bucket."""
    suffix = next(each for each in TEXTS if source.lower().endswith(each))
    content = _begin(source)
    encoding = _encoding(content)
    header, *lines = content.decode(encoding, errors="replace").splitlines() or [""]
    separator = _separator(header, "\t" if suffix.startswith(".tsv") else ",")
    options = "" if separator == "," else f", parse_options=c.ParseOptions(delimiter={json.dumps(separator)})"
    fields = [field.strip('" ') for line in lines[:100] for field in line.split(separator)]
    if separator != "," and any(map(DECIMAL_COMMA.fullmatch, fields)):
        options += ', convert_options=c.ConvertOptions(decimal_point=",")'
    if encoding != "utf-8":
        options += f", read_options=c.ReadOptions(encoding={json.dumps(encoding)})"
    made = f"{source[: -len(suffix)]}.parquet"
    # A JSON string is a valid Python literal.
    read = json.dumps(source, ensure_ascii=False)
    packages = "pyarrow.csv as c, pyarrow.parquet as p"
    if is_remote(source):
        read, made = f'f.open({read}, compression="infer").open()', made.rpartition("/")[2]
        packages += ", fsspec as f"
    code = f"import {packages}; p.write_table(c.read_csv({read}{options}), {json.dumps(made, ensure_ascii=False)})"
    return f"python -c {shlex.quote(code)}"


def _begin(source: str) -> bytes:
    """Return the first lines of a text; nothing where it cannot be read, which the command will say."""
    fs, path = filesystem(source)
    content = b""
    with suppress(OSError, EOFError, zlib.error), fs.open(path, "rb", compression="infer") as file:
        content = file.read(BEGIN_BYTES)
    return content


def _encoding(content: bytes) -> str:
    """Return the encoding of the beginning of a text.

    >>> _encoding("Zürich".encode()), _encoding("Zürich".encode("utf-16")), _encoding("5 €".encode("cp1252"))
    ('utf-8', 'utf-16', 'cp1252')
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        # A character may be cut off at the end.
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(content)
            return encoding
    return "latin-1"


def _separator(header: str, usual: str) -> str:
    """Return what separates the names in a header.

    >>> _separator("place;price, without tax;late", ","), _separator("late", ",")
    (';', ',')
    """
    names = QUOTED.sub("", header)
    most = max(SEPARATORS, key=names.count)
    return most if most in names else usual
