"""Published figures of the quality benchmark: what is written, what counts as a fall, and the command's exit code."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from benchmarks.quality.__main__ import main
from benchmarks.quality.data import DataSet, stage
from benchmarks.quality.published import Comparison, compare, comparison_table, publish, read_published
from benchmarks.quality.runner import FAILED, OK, Cell
from dkan_core import DataError
from tests import warm_python

APS = (0.50, 0.51, 0.52)


def data_set(name: str, digest: str = "d") -> DataSet:
    rows = {"train": 70, "valid": 10, "test": 20}
    return DataSet(
        name=name, digest=digest, folder="", labels=("label",), numeric=("x",), categorical=(), rows=rows, split_by=""
    )


def cells(name: str, aps: Sequence[float | None]) -> dict[tuple[str, str, int], Cell]:
    def cell(ap: float | None) -> Cell:
        return {"status": FAILED} if ap is None else {"status": OK, "metrics": {"average_precision": ap}}

    return {(name, "logistic", seed): cell(ap) for seed, ap in enumerate(aps)}


def compared_with(aps: Sequence[float | None], tmp_path: Path) -> Comparison:
    path = tmp_path / "published.json"
    publish(path, [data_set("one")], ["logistic"], cells("one", APS))
    (comparison,) = compare(read_published(path), cells("one", aps))
    return comparison


def test_published_file_holds_every_seed_and_the_error_of_the_mean(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    found = cells("one", APS) | cells("two", (0.3, None, None))
    publish(path, [data_set("one"), data_set("two")], ["logistic", "dkan"], found)
    (figure,) = json.loads(path.read_text())["figures"]  # the others have too few seeds, or none
    assert figure == {
        "set": "one",
        "digest": "d",
        "model": "logistic",
        "seeds": {"0": 0.5, "1": 0.51, "2": 0.52},
        "average_precision": 0.51,
        "standard_error": pytest.approx(0.01 / 3**0.5, abs=1e-6),
    }


@pytest.mark.parametrize(
    ("aps", "fell"),
    [
        (APS, False),
        ((0.51,), False),
        # One-sided t of 4 degrees of freedom at 0.01 is 3.747: 0.0306 may be lost where both deviate by 0.01.
        ((0.470, 0.480, 0.490), False),
        ((0.468, 0.478, 0.488), True),
        # Of one seed less is known: 6.965 of 2 degrees of freedom allow 0.0804.
        ((0.431,), False),
        ((0.428,), True),
        ((0.9, 0.9, 0.9), False),
        ((None, None), True),
    ],
)
def test_fall_is_more_than_seeds_differ(aps: Sequence[float | None], fell: bool, tmp_path: Path) -> None:
    assert compared_with(aps, tmp_path).fell is fell


def test_table_has_what_fell_first(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    names = ("one", "two", "three", "four")
    published = {key: cell for name in names for key, cell in cells(name, APS).items()}
    publish(path, [data_set(name) for name in names], ["logistic"], published)
    measured = cells("one", APS) | cells("two", (0.4, 0.4, 0.4)) | cells("three", (None,))
    lines = comparison_table(compare(read_published(path), measured)).splitlines()
    assert lines[2:] == [
        "| two | logistic | 0.5100 | 0.4000 | -0.1100 | -0.0216 | fell |",
        "| three | logistic | 0.5100 | - | - | - | failed |",
        "| one | logistic | 0.5100 | 0.5100 | +0.0000 | -0.0306 |  |",
        "| four | logistic | 0.5100 | - | - | - | not measured |",
    ]


def test_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    with pytest.raises(DataError, match=r"published\.json: no such file; --publish .* writes it"):
        read_published(path)
    path.write_text('{"format": 1, "figures": [{"set": "one"}]}')
    with pytest.raises(DataError, match=r"published\.json: figures\.0\.digest: Field required"):
        read_published(path)


def benchmark(tmp_path: Path, **options: Any) -> int:
    """Run the command in this process on one small set; return its exit code."""
    settings: dict[str, Any] = {"label": "label", "seeds": 2, "max_cpu_seconds": 120.0, "threads": 1, "force": False}
    try:
        main([tmp_path / "tiny.parquet"], out=tmp_path / "out", **{**settings, **options})
    except typer.Exit as end:
        return end.exit_code
    return 0


@pytest.mark.slow
def test_command_publishes_and_checks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", warm_python.executable())
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    label = (x + rng.normal(size=400) > 0.7).astype(np.int8)
    pq.write_table(pa.table({"x": x, "label": label}), tmp_path / "tiny.parquet")
    data = stage(tmp_path / "tiny.parquet", (tmp_path / "out" / "data").absolute(), ["label"])
    low, path, high = (tmp_path / f"{name}.json" for name in ("low", "published", "high"))
    for file, aps in ((low, (0.1, 0.2)), (high, (0.98, 0.99))):
        publish(file, [data], ["logistic"], cells("tiny", aps))

    # Without a list of models those of the file are fitted; in the second run they have results already.
    assert benchmark(tmp_path, check=low, publish_to=path) == 0
    (figure,) = read_published(path).figures
    assert (figure.model, figure.digest, set(figure.seeds)) == ("logistic", data.digest, {"0", "1"})
    assert benchmark(tmp_path, check=high) == 1
    assert "| fell |" in caplog.text


def test_command_refuses_before_the_first_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    label = np.arange(400) % 3 == 0
    pq.write_table(pa.table({"x": np.arange(400.0), "label": label.astype(np.int8)}), tmp_path / "tiny.parquet")
    for name, message in (
        ("tiny", "tiny: other rows or labels than those of the published figures"),
        ("other", "nothing to compare; the published figures are of logistic on other"),
    ):
        publish(tmp_path / "published.json", [data_set(name)], ["logistic"], cells(name, APS))
        assert benchmark(tmp_path, check=tmp_path / "published.json") == 2
        assert message in caplog.text
    assert benchmark(tmp_path, models="logistic:1", publish_to=tmp_path / "new.json") == 2
    assert "--publish: logistic has 1 seed; expected at least 2" in caplog.text
