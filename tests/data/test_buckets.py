"""With ``--max-categories``, rare values share codes by their hash, the same wherever rows are encoded."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import ConfigError, DataError, PrepareConfig, predict, prepare
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.histograms import count_values
from dkan_core.data.encoding.preprocessor import FIRST_CODE, MISSING, CategoryFeature
from dkan_core.data.format.manifest import read_manifest
from dkan_core.explanation.explain import explain
from dkan_core.explanation.inverse_transform import inverse_transform, written_values
from dkan_core.model.saved_model import SavedModel
from dkan_core.onnx_export.export import onnx_bytes
from tests.data.tables import contents, read, write
from tests.onnx_export.models import random_model

ROWS = 3000
CONFIG = PrepareConfig(label=("y",), max_categories=10)


def make_rows() -> pa.Table:
    """City 0 is the most frequent, and half of all rows hold one of the ten first."""
    rng = np.random.default_rng(0)
    cities = np.where(rng.random(ROWS) < 0.5, np.minimum(rng.geometric(0.2, ROWS), 10), rng.integers(11, 200, ROWS))
    return pa.table(
        {
            "city": pa.array([f"c{city}" for city in cities], mask=rng.random(ROWS) < 0.1),
            "flag": rng.random(ROWS) < 0.5,
            "y": rng.integers(0, 2, ROWS),
        }
    )


def test_rare_values_share_codes_and_none_is_unseen(tmp_path: Path) -> None:
    source = write(make_rows(), tmp_path / "raw", files=2, row_group_size=500)
    manifest = prepare(source, tmp_path / "out", CONFIG)
    city, flag = manifest.preprocessor.coded
    assert isinstance(city, CategoryFeature) and isinstance(flag, CategoryFeature)
    assert (len(city.vocabulary), city.buckets, city.cardinality, flag.buckets) == (10, 2, 14, 0)
    codes = read(tmp_path / "out", "train")["categorical"][:, 0]
    assert {*codes.tolist()} == {MISSING, *range(FIRST_CODE, 14)}
    assert manifest.hashed == {"city": pytest.approx((codes >= 12).mean(), abs=1e-6)}
    assert read_manifest(tmp_path / "out") == manifest
    prepare(source, tmp_path / "parts", CONFIG, workers=2)
    assert contents(tmp_path / "parts") == contents(tmp_path / "out")
    assert prepare(source, tmp_path / "out", CONFIG, reuse=True).fingerprint == manifest.fingerprint
    with pytest.raises(ConfigError, match=r"max_categories: .* leave it out with --like"):
        prepare(source, tmp_path / "like", PrepareConfig(like=str(tmp_path / "out"), max_categories=5))
    again = prepare(source, tmp_path / "like", PrepareConfig(like=str(tmp_path / "out")))
    assert again.preprocessor == manifest.preprocessor and again.hashed == manifest.hashed


def test_a_column_of_few_values_is_as_without_a_limit() -> None:
    limited, free = (
        fit_preprocessor(make_rows(), [], ["city", "flag"], "uint8", "rows", max_categories=limit)
        for limit in (1000, None)
    )
    assert limited == free and limited.digest == free.digest


def test_code_of_a_new_value_depends_on_nothing_but_the_value() -> None:
    encoding = fit_preprocessor(make_rows(), [], ["city"], "uint8", "rows", max_categories=10)
    values = [None, *(f"new {n}" for n in range(50)), "c1"]
    together = encoding.transform(pa.table({"city": values}), "rows")["categorical"][:, 0]
    tables = [pa.table({"city": pa.array([value], pa.string())}) for value in values]
    alone = [encoding.transform(table, "rows")["categorical"] for table in tables]
    assert together.tolist() == [int(code[0, 0]) for code in alone]
    assert {*together[1:-1].tolist()} == {12, 13}
    counted = count_values(pa.table({"city": values}), encoding, "rows")["city"]
    assert counted[0] == 0 and counted[12:].sum() == 50
    chunked = pa.table({"city": pa.chunked_array([values[:7], values[7:]])})
    assert np.array_equal(encoding.transform(chunked, "rows")["categorical"][:, 0], together)


def test_models_score_explain_and_name_them(tmp_path: Path) -> None:
    rows = make_rows()
    encoding = fit_preprocessor(rows, [], ["city", "flag"], "uint8", "rows", max_categories=10)
    model = random_model(tmp_path / "model", encoding=encoding, labels=("y",), members=1)
    source = write(rows, tmp_path / "raw")
    assert predict(model, source, tmp_path / "scores.parquet", reasons=1) == ROWS
    with pytest.raises(DataError, match="'city': its rare values share codes by their hash"):
        onnx_bytes(SavedModel(model))
    prepare(source, tmp_path / "out", PrepareConfig(like=str(model)))
    explain(model, tmp_path / "out", tmp_path / "learned", rows=100, top=1)
    assert "(others, 1 of 2)" in (tmp_path / "learned" / "explanation.json").read_text()
    stored = read(tmp_path / "out", "train")
    back = inverse_transform(stored, encoding)
    assert {name for name in back["city"].to_pylist() if name and not name.startswith("c")} == {
        f"\N{REPLACEMENT CHARACTER}dkan: not in the vocabulary (others, {n} of 2)" for n in (1, 2)
    }
    written = written_values(back, encoding)["city"].to_pylist()
    assert {name for name in written if name and not name.startswith("c")} == {"rare or unseen"}
