"""What models with columns of ids say of them: over many rows, and of each row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.sparse import csr_matrix

from dkan_core import (
    FastKANClassifier,
    PrepareConfig,
    TrainConfig,
    evaluate,
    explain,
    explain_rows,
    predict,
    prepare,
    train,
)
from dkan_core.data.encoding.sparse import SparseFeature
from dkan_core.data.format.manifest import read_manifest
from dkan_core.explanation.columns import Cells, Column, changed_rows, redrawn, sparse_codes, sparse_columns
from dkan_core.explanation.contributions import ContributionExplainer, background_rows
from dkan_core.explanation.explain import read_rows
from dkan_core.explanation.ids import row_texts
from dkan_core.explanation.model_response import ModelResponse
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import log_odds
from tests.data.sparse_tables import as_lists
from tests.data.tables import write

ROWS, TAGS, ITEMS = 1500, 30, 12
GOOD, BAD, RARE = 4, 9, 29
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["none", "layer"])
def folder(request: Any, tmp_path_factory: Any) -> Path:
    """Train on tags of which two count, items that say nothing, and a number; on layers that are a sum and one not."""
    root: Path = tmp_path_factory.mktemp("ids")
    rng = np.random.default_rng(0)
    tags_NV, items_NV = (
        (rng.random((ROWS, ids)) < share).astype(np.uint8) for ids, share in ((TAGS, 0.2), (ITEMS, 0.3))
    )
    tags_NV[:, RARE] *= rng.random(ROWS) < 0.1
    x_N = rng.normal(size=ROWS)
    odds_N = 3.0 * tags_NV[:, GOOD] - 2.5 * tags_NV[:, BAD] + 0.5 * x_N
    columns = {"tags": as_lists(tags_NV), "items": as_lists(items_NV), "x": x_N}
    table = pa.table({**columns, "y": (odds_N + rng.logistic(size=ROWS) > 0).astype(np.int8)})
    prepare(write(table, root / "raw"), root / "data", PrepareConfig(label=("y",)))
    model: Any = {"model": "fastkan", "input_norm": "layer"} if request.param == "layer" else {"members": 2}
    train(root / "data", root / "run", TrainConfig(**model, epochs=8, hidden=(8,), workers=1, learning_rate=0.02))
    return root


def rows_of(folder: Path) -> tuple[SavedModel, Any]:
    arrays = read_rows(folder / "data", read_manifest(folder / "data"), "train", 300)
    return SavedModel(folder / "run" / "model"), {name: arrays[name] for name in ("numeric", "sparse")}


def without(sparse_NS: Any, code: int) -> Any:
    return np.where(sparse_NS == code, 0, sparse_NS).astype(sparse_NS.dtype)


def test_contributions_and_the_baseline_are_the_log_odds(folder: Path) -> None:
    saved, arrays = rows_of(folder)
    if saved.config.model == "auto":
        assert saved.config.blended is not None and saved.config.blended.ids
    explainer = ContributionExplainer(saved.module, saved.preprocessor, CPU)
    assert [each.name for each in explainer.columns] == ["x", "tags", "items"]
    found_NFL, added_NSL = explainer.explain_ids(arrays)
    np.testing.assert_allclose(
        found_NFL.sum(axis=1) + explainer.baseline, log_odds(saved.module, arrays, CPU), atol=1e-3
    )
    tags = sparse_columns(saved.preprocessor)[0]
    good_NS = arrays["sparse"] == tags.first_code + GOOD
    lost_N = log_odds(saved.module, arrays, CPU) - log_odds(
        saved.module, {**arrays, "sparse": without(arrays["sparse"], tags.first_code + GOOD)}, CPU
    )
    added_N = (added_NSL[:, :, 0] * good_NS).sum(axis=1)
    # By the mean gradient towards the background, and by leaving the id out: alike, where the model is not rugged.
    has_N = good_NS.any(axis=1)
    assert np.corrcoef(added_N[has_N], lost_N[has_N, 0])[0, 1] > 0.5
    assert added_N[has_N].mean() > 0.5 and (added_N[~has_N] == 0).all()


def test_background_has_each_id_as_often_as_training_did(folder: Path) -> None:
    saved, _ = rows_of(folder)
    tags, items = sparse_columns(saved.preprocessor)
    explainer = ContributionExplainer(saved.module, saved.preprocessor, CPU)
    arrays = background_rows(saved.preprocessor, explainer.columns, 4000)
    for column in (tags, items):
        assert column.sparse is not None
        drawn_V = np.bincount(sparse_codes(column, arrays["sparse"]).ravel(), minlength=TAGS + ITEMS + 1)
        found_V = drawn_V[column.first_code : column.first_code + column.sparse.size] / 4000
        np.testing.assert_allclose(found_V, np.array(column.sparse.counts) / column.sparse.sample_rows, atol=0.03)


def test_answers_to_changed_ids_are_those_of_the_model(folder: Path) -> None:
    saved, arrays = rows_of(folder)
    response = ModelResponse(saved.module, CPU, [0], arrays)
    column = sparse_columns(saved.preprocessor)[0]
    rows_M, cells = redrawn(arrays, column, np.random.default_rng(1).permutation(300))
    assert cells.sparse_PS is not None and len(rows_M) > 200
    expected_ML = log_odds(saved.module, changed_rows(arrays, rows_M, [(column, cells)]), CPU)
    np.testing.assert_allclose(response.to_changed(rows_M, [(column, cells)]), expected_ML, atol=1e-4)
    tags_MS = sparse_codes(column, changed_rows(arrays, rows_M, [(column, cells)])["sparse"])
    assert [sorted({*codes} - {0}) for codes in tags_MS.tolist()] == [
        sorted({*codes} - {0}) for codes in cells.sparse_PS.tolist()
    ]


def test_effect_of_an_id_is_that_of_adding_it_to_all_rows(folder: Path) -> None:
    saved, arrays = rows_of(folder)
    response = ModelResponse(saved.module, CPU, [0], arrays)
    code = sparse_columns(saved.preprocessor)[0].first_code + BAD
    (found,) = response.with_less_without(np.array([code]), 300)
    none_NS = without(arrays["sparse"], code)
    with_NS = np.concatenate([none_NS, np.full((300, 1), code, none_NS.dtype)], axis=1)
    by_hand = [log_odds(saved.module, {**arrays, "sparse": codes}, CPU)[:, 0].mean() for codes in (with_NS, none_NS)]
    assert found == pytest.approx(float(by_hand[0] - by_hand[1]), abs=1e-4) and found < -0.5


def test_page_and_numbers_name_the_ids_that_count(folder: Path, tmp_path: Path) -> None:
    found = explain(folder / "run", folder / "data", tmp_path / "out", split="train").labels["y"]
    assert found.importance[0].name == "tags" and found.importance[0].kind == "ids"
    assert (found.importance[0].precision_drop or 0) > 0.05
    tags, items = found.ids
    assert {each.id for each in tags.strongest[:2]} == {str(GOOD), str(BAD)} and items.name == "items"
    by_id = {each.id: each for each in tags.strongest}
    assert by_id[str(GOOD)].effect > 1 and by_id[str(BAD)].effect < -1
    assert by_id[str(GOOD)].share == pytest.approx(0.2, abs=0.03)
    page = (tmp_path / "out" / "explanation.html").read_text()
    assert "Most important IDs" in page and "the strongest 20 of 30" in page
    plain = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert plain["labels"]["y"]["ids"][0]["strongest"][0]["id"] in (str(GOOD), str(BAD))
    evaluation = evaluate(folder / "run", folder / "data", tmp_path / "eval", split="train")
    assert "Most important IDs" in evaluation.report


def test_reasons_of_rows_name_their_ids(folder: Path, tmp_path: Path) -> None:
    rows = write(pq.read_table(folder / "raw").slice(0, 150), tmp_path / "rows")
    predict(folder / "run", rows, tmp_path / "scores.parquet", reasons=3)
    reasons = pq.read_table(tmp_path / "scores.parquet")["y_reasons"].to_pylist()
    tags = pq.read_table(rows)["tags"].to_pylist()
    both = [row for row, ids in enumerate(tags) if {GOOD, BAD} <= {*ids}]
    for row in both:
        (said,) = [each["value"] for each in reasons[row] if each["column"] == "tags"]
        first = {word.partition(" ")[0] for word in said.split(", ")[:2]}
        assert first == {str(GOOD), str(BAD)}, said
    assert len(both) > 3
    explained = explain_rows(folder / "run", rows, tmp_path / "page")
    assert len(explained[0].reasons) == 3 and "tags = " in (tmp_path / "page" / "rows.html").read_text()


def test_ids_of_a_row_are_written_out() -> None:
    feature = SparseFeature(name="tags", ids=[-3, 17, *range(20, 30)], buckets=1, counts=[1] * 13, sample_rows=1)
    column = Column(name="tags", sparse=feature, sparse_index=0, first_code=5)
    codes_NS = np.array([[1, 5, 6, 17], [1, 2, 0, 0], [*range(6, 10)]], np.int32)
    added_NS: npt.NDArray[np.float32] = np.array([[9, -0.5, 1, 0.25], [9, 9, 0, 0], [0, 0, 0, 0]], np.float32)
    assert row_texts(column, codes_NS, added_NS)[:2] == ["17 (+1.00), -3 (-0.50), another ID (+0.25)", "no IDs"]
    many = np.arange(5, 12, dtype=np.int32)[None]
    assert row_texts(column, many, np.ones_like(many, np.float32))[0].endswith("22 (+1.00), 2 more")
    assert Cells(None, None, codes_NS)[np.array([1])].sparse_PS is not None


def test_classifier_explains_rows_of_a_sparse_matrix() -> None:
    rng = np.random.default_rng(0)
    ones_NV = rng.random((600, 20)) < 0.3
    y = ones_NV[:, 3] ^ (rng.random(600) < 0.1)
    model = FastKANClassifier(
        epochs=10, members=1, hidden=(8,), learning_rate=0.05, random_state=0, n_jobs=1, device="cpu"
    )
    model.fit(csr_matrix(ones_NV), y)
    found = model.explain(csr_matrix(ones_NV))
    np.testing.assert_allclose(found.sum(axis=1), model.decision_function(csr_matrix(ones_NV)), atol=1e-3)
    importances = model.feature_importances_
    assert importances.shape == (20,) and importances[3] > 2 * np.delete(importances, 3).max()
    assert "Most important IDs" in model.plot(csr_matrix(ones_NV), y).html
