"""``result.model`` and ``result.predict_proba`` score raw rows as training and ``predict`` do."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dkan_core import DataError, MainResult, main, predict
from dkan_core.scoring.probabilities import SCORING_ROWS
from tests.integrations.notebook.known import CONFIG, TEST


@pytest.fixture(scope="module")
def expected(from_arrays: MainResult, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Return what ``predict`` says of the test rows."""
    folder = tmp_path_factory.mktemp("parquet")
    pq.write_table(pa.table({f"feature_{i}": TEST[0][:, i] for i in range(4)}), folder / "rows.parquet")
    predict(from_arrays.path, folder / "rows.parquet", folder / "scores.parquet")
    probability: np.ndarray = pq.read_table(folder / "scores.parquet")["label_probability"].to_numpy()
    return probability


def features(x: np.ndarray) -> Dataset[torch.Tensor]:
    """Return what a DataLoader takes for a data set, as it has a length and items."""
    return cast(Dataset[torch.Tensor], torch.from_numpy(x))


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: x,
        lambda x, y: torch.from_numpy(x),
        lambda x, y: x.astype(np.float64),
        lambda x, y: (x, y),
        lambda x, y: pd.DataFrame(x),
        lambda x, y: pa.table({str(index): x[:, index] for index in range(4)}),
        lambda x, y: DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=13),
        lambda x, y: DataLoader(TensorDataset(torch.from_numpy(x)), batch_size=64),
        lambda x, y: DataLoader(features(x), batch_size=64),
        lambda x, y: [DataLoader(features(x[:100])), (x[100:], y[100:])],
    ],
    ids=["array", "tensor", "doubles", "pair", "frame", "arrow", "loader", "of features", "of tensors", "list"],
)
def test_raw_rows_score_as_in_training_and_in_predict(
    form: Callable[[np.ndarray, np.ndarray], object], from_arrays: MainResult, expected: np.ndarray
) -> None:
    raw = form(*TEST)
    found = from_arrays.predict_proba(raw)
    assert found.shape == (200,) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert average_precision_score(TEST[1], found) == pytest.approx(from_arrays.validation_average_precision, abs=1e-9)


def test_model_gives_log_odds_as_a_network_does(from_arrays: MainResult) -> None:
    x = torch.from_numpy(TEST[0])
    log_odds = from_arrays.model.train()(x)
    assert log_odds.shape == (200, 1) and log_odds.device == x.device and not log_odds.requires_grad
    np.testing.assert_allclose(torch.sigmoid(log_odds)[:, 0].numpy(), from_arrays.predict_proba(x), rtol=1e-6)
    encoded = from_arrays.model.preprocessor.transform(
        pa.table({f"feature_{i}": TEST[0][:, i] for i in range(4)}), "rows"
    )
    inputs = {name: torch.from_numpy(array) for name, array in encoded.items()}
    torch.testing.assert_close(from_arrays.model.network.eval()(**inputs), log_odds)


def test_values_missing_in_training_are_those_missing_here(from_arrays: MainResult) -> None:
    x = TEST[0].copy()
    missing = np.isnan(x[:, 3])
    x[:, 3] = np.nan
    with pytest.warns(UserWarning, match="no value in any of 200 rows, although training has some: 'feature_3'"):
        lacking = from_arrays.predict_proba(x)
    np.testing.assert_array_equal(lacking[missing], from_arrays.predict_proba(TEST[0])[missing])
    assert lacking[~missing].mean() > from_arrays.predict_proba(TEST[0])[~missing].mean() + 0.05
    objects = x.astype(object)
    objects[:, 3] = None
    with pytest.warns(UserWarning, match="'feature_3'"):
        np.testing.assert_array_equal(from_arrays.predict_proba(objects), lacking)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (TEST[0][:, :3], r"rows: has 3 features; the model was trained with 4 \(feature_0, feature_1, feature_2, fe"),
        ([TEST, (TEST[0][:, :2], TEST[1])], r"rows\[1\]: has 2 features; the model was trained with 4"),
        (TEST[0][0], r"rows: expected features \(N, F\), got \(4,\)"),
        (TEST[0].astype(str), r"rows: column 'feature_0' is string; the model was trained with numbers there"),
        ("rows.parquet", r"rows: expected a DataLoader, a pair of arrays .*, got str"),
        ([[1.0, 2.0, 3.0, 4.0]], r"rows\[0\]\[0\]: expected a DataLoader, a pair of arrays .*, got float"),
    ],
)
def test_other_rows_are_named(from_arrays: MainResult, raw: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays.predict_proba(raw)


def test_rows_are_encoded_few_at_a_time(from_arrays: MainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader of any length, or one large array, is never held encoded as a whole."""
    encoded: list[int] = []
    transform = type(from_arrays.model.preprocessor).transform

    def watched(preprocessor: object, table: pa.Table, where: str) -> dict[str, np.ndarray]:
        encoded.append(len(table))
        return transform(preprocessor, table, where)  # type: ignore[arg-type]

    def batches() -> Iterator[np.ndarray]:
        for _ in range(5):
            assert len(encoded) == taken[0]
            taken[0] += 1
            yield TEST[0][:10]

    taken = [0]
    monkeypatch.setattr(type(from_arrays.model.preprocessor), "transform", watched)
    assert from_arrays.predict_proba(batches()).shape == (50,)
    encoded.clear()
    large = np.zeros((SCORING_ROWS + 5, 4), dtype=np.float32)
    assert from_arrays.predict_proba(large).shape == (len(large),) and encoded == [SCORING_ROWS, 5]


def test_no_rows_give_no_probabilities(from_arrays: MainResult) -> None:
    assert from_arrays.predict_proba([]).shape == from_arrays.predict_proba(TEST[0][:0]).shape == (0,)


def test_values_that_the_model_does_not_know_are_warned_of(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=400), "site": rng.choice(["left", "right"], 400)})
    y = (X["size"] > 0).astype(int)
    found = main((X, y), (X, y), CONFIG, run=tmp_path / "run")
    known = found.predict_proba(X)
    moved = X.assign(site="elsewhere")
    for ask in (found.predict_proba, found.model):
        with pytest.warns(UserWarning, match=r"^rows: column 'site': 400 of 400 rows .* model does not know") as caught:
            ask(moved)
        assert [warning.filename for warning in caught] == [__file__]
    assert np.array_equal(found.predict_proba(X), known), "warnings are errors here"
