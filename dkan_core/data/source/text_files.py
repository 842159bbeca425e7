"""Files of comma-separated values, which are not read: how to make Parquet of them."""

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
    made = f"{source.split('.csv')[0].split('.tsv')[0]}.parquet"
    options = ", parse_options=c.ParseOptions(delimiter='\\t')" if ".tsv" in source.lower() else ""
    read = f"c.read_csv('{source}'{options})"
    return f"python -c \"import pyarrow.csv as c, pyarrow.parquet as p; p.write_table({read}, '{made}')\""
