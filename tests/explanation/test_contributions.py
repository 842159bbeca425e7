"""Contributions add up to the log-odds, belong to the columns that move them, and agree with Shapley's values."""

import itertools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import ConfigError, DataError, FastKANClassifier, TrainResult, predict
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import PreparedData
from dkan_core.explanation import contributions
from dkan_core.explanation.contributions import BACKGROUND_ROWS, ContributionExplainer, background_rows
from dkan_core.explanation.reasons import BASELINE
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.build import build_model
from dkan_core.model.saved_model import SavedModel, write_model_files
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.scoring.probabilities import log_odds
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.file_names import PREPROCESSOR
from dkan_core.utils.storage.files import json_text
from dkan_core.utils.torch_resources import torch_threads
from tests.blends import blend_for
from tests.command import dkan
from tests.settings import resolved

CPU = torch.device("cpu")


def build(manifest: PreparedData, groups: list[tuple[int, ...]], **settings: Any) -> TabularFastKAN:
    """Return an untrained, calibrated model, with random weights for one-hots and tables, which start at zero."""
    is_blended = settings.pop("blend", False)
    config = ModelConfig.for_data(manifest, resolved(**settings), one_hot_groups=groups, missing=[0])
    if is_blended:
        config = config.model_copy(update={"blended": blend_for(manifest.preprocessor)})
    torch.manual_seed(0)
    model = build_model(config).eval()
    assert isinstance(model, TabularFastKAN)
    if isinstance(model, BlendedFastKAN):
        torch.nn.init.normal_(model.additive.table, std=0.5)
        torch.nn.init.normal_(model.additive.bias)
    if model.encoder.indicators is not None:
        torch.nn.init.normal_(model.encoder.indicators.weight, std=0.3)
    model.calibrate(1.7, -0.4)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden": (8,), "members": 2},
        {"hidden": (6, 5), "members": 3},
        {"hidden": (), "members": 2},
        {"hidden": (8,), "members": 2, "input_norm": "layer"},
        {"hidden": (8,), "model": "fastkan"},
        {"hidden": (8,), "model": "fastkan", "input_norm": "layer"},
        {"hidden": (8,), "members": 2, "blend": True},
        {"hidden": (8,), "members": 2, "blend": True, "input_norm": "layer"},
    ],
    ids=str,
)
def test_contributions_and_baseline_add_up_to_the_log_odds(
    rows: tuple[PreparedData, Arrays], settings: dict[str, Any]
) -> None:
    manifest, arrays = rows
    arrays = {name: array[:8] for name, array in arrays.items()}
    model = build(manifest, [(0,), (1,), (0, 1), (1, 2, 0)], **settings)
    explainer = ContributionExplainer(model, manifest.preprocessor, CPU)
    found_NFL = explainer.explain(arrays)
    assert found_NFL.shape == (8, len(manifest.preprocessor.columns), 1)
    expected_NL = log_odds(model, arrays, CPU).numpy()
    np.testing.assert_allclose(found_NFL.sum(axis=1) + explainer.baseline, expected_NL, atol=1e-4)
    background = background_rows(manifest.preprocessor, explainer.columns)
    np.testing.assert_allclose(explainer.baseline, log_odds(model, background, CPU).numpy().mean(axis=0), atol=1e-4)


def test_several_labels_have_contributions_of_their_own(many: tuple[Path, Path]) -> None:
    saved = SavedModel(many[0])
    rows = pq.read_table(many[0].parent / "rows.parquet").slice(0, 6)
    arrays = saved.preprocessor.transform(rows, "rows")
    explainer = ContributionExplainer(saved.module, saved.preprocessor, CPU)
    found_NFL = explainer.explain(arrays)
    assert found_NFL.shape == (6, 3, 3)
    expected_NL = log_odds(saved.module, arrays, CPU).numpy()
    np.testing.assert_allclose(found_NFL.sum(axis=1) + explainer.baseline, expected_NL, atol=1e-4)


def test_threads_do_not_share_a_chunk_of_rows(many: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedModel(many[0])
    rows = pq.read_table(many[0].parent / "rows.parquet").slice(0, 18)
    arrays = saved.preprocessor.transform(rows, "rows")
    explainer = ContributionExplainer(saved.module, saved.preprocessor, CPU)
    finish, seen = explainer._terms.finish, list[int]()

    def counted(total: Any) -> Any:
        seen.append(torch.get_num_threads())
        return finish(total)

    monkeypatch.setattr(explainer._terms, "finish", counted)
    with torch_threads(3):
        together = explainer.explain(arrays)
    assert {*seen} == {1}
    some = [0, 7, 15, 16, 17]
    alone = np.concatenate(
        [explainer.explain({name: array[row : row + 1] for name, array in arrays.items()}) for row in some]
    )
    np.testing.assert_allclose(together[some], alone, atol=1e-5)
    assert explainer.explain({name: array[:0] for name, array in arrays.items()}).shape == (0, *together.shape[1:])


def test_label_is_explained_as_it_is_alone(many: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first quadrature is too coarse for one of a row's labels, and fine enough for another."""
    monkeypatch.setattr(contributions, "POINTS", 1)
    saved = SavedModel(many[0])
    arrays = saved.preprocessor.transform(pq.read_table(many[0].parent / "rows.parquet").slice(0, 60), "rows")
    together_NFL = ContributionExplainer(saved.module, saved.preprocessor, CPU).explain(arrays)
    for label in range(3):
        alone = ContributionExplainer(saved.module, saved.preprocessor, CPU, labels=[label])
        np.testing.assert_allclose(together_NFL[:, :, label], alone.explain(arrays)[:, :, 0], atol=1e-6)


def test_background_spreads_every_column_over_its_distribution(rows: tuple[PreparedData, Arrays]) -> None:
    preprocessor = rows[0].preprocessor
    assert preprocessor.counts is not None
    columns = ContributionExplainer(build(rows[0], [(0,)], hidden=(4,)), preprocessor, CPU).columns
    background = background_rows(preprocessor, columns)
    for column in columns:
        if column.numeric is None:
            counts = np.array(preprocessor.counts[column.name])
            found = np.bincount(background["categorical"][:, column.code_index], minlength=len(counts))
            np.testing.assert_allclose(found / BACKGROUND_ROWS, counts / counts.sum(), atol=1.01 / BACKGROUND_ROWS)
        else:
            # Kolmogorov-Smirnov distance; missing values sort as the largest.
            stored = rows[1]["numeric"][:, column.numeric_index]
            drawn, found = (
                np.nan_to_num(background["numeric"][:, column.numeric_index], nan=9),
                np.nan_to_num(stored, nan=9),
            )
            distances = [abs((drawn <= score).mean() - (found <= score).mean()) for score in np.unique(found)]
            assert max(distances) < 2 / BACKGROUND_ROWS


def shapley_values(
    model: TabularModel, arrays: Arrays, background: Arrays, indices: list[list[tuple[str, int]]]
) -> npt.NDArray[np.float64]:
    """Return Shapley's values of one row against a background, by all coalitions."""
    columns = len(indices)
    mixed: dict[str, list[npt.NDArray[Any]]] = defaultdict(list)
    coalitions = [*itertools.product([False, True], repeat=columns)]
    for coalition in coalitions:
        rows = {name: array.copy() for name, array in background.items()}
        for chosen, own in zip(coalition, indices, strict=True):
            for name, index in own if chosen else ():
                rows[name][:, index] = arrays[name][0, index]
        for name, array in rows.items():
            mixed[name].append(array)
    scored = log_odds(model, {name: np.concatenate(parts) for name, parts in mixed.items()}, CPU).numpy()[:, 0]
    values = dict(zip(coalitions, scored.reshape(len(coalitions), -1).mean(axis=1).astype(np.float64), strict=True))
    found = np.zeros(columns)
    for coalition in coalitions:
        for column in range(columns):
            if not coalition[column]:
                size = sum(coalition)
                weight = math.factorial(size) * math.factorial(columns - size - 1) / math.factorial(columns)
                with_it = (*coalition[:column], True, *coalition[column + 1 :])
                found[column] += weight * (values[with_it] - values[coalition])
    return found


def test_contributions_agree_with_exact_shapley_values(known: Path, learner: TrainResult) -> None:
    saved = SavedModel(Path(learner.model))
    source = pq.read_table(known.parent / "rows.parquet").slice(50, 6)
    arrays = saved.preprocessor.transform(source, "rows")
    explainer = ContributionExplainer(saved.module, saved.preprocessor, CPU)
    found_NF = explainer.explain(arrays)[:, :, 0]
    background = background_rows(saved.preprocessor, explainer.columns)
    indices = [column.indices for column in explainer.columns]
    exact_NF = np.array(
        [
            shapley_values(
                saved.module, {name: array[row : row + 1] for name, array in arrays.items()}, background, indices
            )
            for row in range(len(source))
        ]
    )
    assert np.corrcoef(found_NF.ravel(), exact_NF.ravel())[0, 1] > 0.98
    assert np.mean(np.abs(found_NF).argmax(axis=1) == np.abs(exact_NF).argmax(axis=1)) >= 0.8


def test_columns_without_effect_are_credited_with_little(known: Path, learner: TrainResult) -> None:
    saved = SavedModel(Path(learner.model))
    arrays = saved.preprocessor.transform(pq.read_table(known.parent / "rows.parquet").slice(0, 60), "rows")
    explainer = ContributionExplainer(saved.module, saved.preprocessor, CPU)
    size = dict(
        zip(
            [column.name for column in explainer.columns],
            np.abs(explainer.explain(arrays)[:, :, 0]).mean(0),
            strict=True,
        )
    )
    assert max(size[name] for name in ("noise", "flag", "letters")) < min(
        size[name] for name in ("rising", "bowl", "color", "spiked")
    )


@pytest.fixture(scope="module")
def few(known: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 12 rows, the first without any value."""
    rows = pq.read_table(known.parent / "rows.parquet").slice(0, 12)
    columns = {name: [None, *rows[name].to_pylist()[1:]] for name in rows.column_names}
    # Neither is a number: both count as missing.
    columns["bowl"][1:3] = [float("nan"), float("inf")]
    path = tmp_path_factory.mktemp("few") / "rows.parquet"
    pq.write_table(pa.table(columns, schema=rows.schema), path)
    return path


def test_predict_adds_the_strongest_reasons_with_their_values(
    learner: TrainResult, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--out", tmp_path / "three.parquet", "--reasons", 3, "--column", "bowl")
    assert dkan("predict", learner.model, few, *options, monkeypatch=monkeypatch) == 0
    assert predict(learner.model, few, tmp_path / "all.parquet", reasons=100) == 12
    assert predict(learner.model, few, tmp_path / "none.parquet") == 12
    three, everything, none = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("three", "all", "none"))
    assert three.column_names == ["bowl", "label_probability", "label_reasons"]
    assert three["label_probability"].equals(none["label_probability"])
    source = pq.read_table(few)
    for row, (found, all_found) in enumerate(
        zip(three["label_reasons"].to_pylist(), everything["label_reasons"].to_pylist(), strict=True)
    ):
        assert found == all_found[:3] and {reason["column"] for reason in all_found} == {*source.column_names[:-1]}
        sizes = [abs(reason["log_odds"]) for reason in all_found]
        assert sizes == sorted(sizes, reverse=True)
        for reason in all_found:
            value = source[reason["column"]][row].as_py()
            is_missing = value is None or (isinstance(value, float) and not math.isfinite(value))
            assert reason["value"] is None if is_missing else type(value)(reason["value"]) == value
    baseline = json.loads(everything.schema.metadata[BASELINE])["label"]
    total = np.array([sum(reason["log_odds"] for reason in found) for found in everything["label_reasons"].to_pylist()])
    probability = everything["label_probability"].to_numpy().astype(np.float64)
    np.testing.assert_allclose(total + baseline, np.log(probability / (1 - probability)), atol=1e-4)


def test_reasons_that_cannot_be_given_are_refused(learner: TrainResult, few: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    with pytest.raises(ConfigError, match="reasons must be 0 or more, got -1"):
        predict(learner.model, few, out, reasons=-1)
    table = pq.read_table(few)
    pq.write_table(table.append_column("label_reasons", pa.array([1] * 12)), tmp_path / "clash.parquet")
    with pytest.raises(DataError, match="'label_reasons' cannot be copied to the output: the reasons have that name"):
        predict(learner.model, tmp_path / "clash.parquet", out, columns=["label_reasons"], reasons=1)
    # As a version wrote it that kept no counts.
    saved = SavedModel(Path(learner.model))
    plain = Preprocessor.from_dict(saved.preprocessor.to_dict()).model_copy(update={"counts": None}).to_dict()
    files = {path.name: path.read_bytes() for path in saved.folder.iterdir() if path.name != "files.json"}
    write_model_files(tmp_path / "old", {**files, PREPROCESSOR: json_text(plain).encode()})
    with pytest.raises(DataError, match="does not hold the distribution of its training data"):
        predict(tmp_path / "old", few, out, reasons=1)
    assert not out.exists()


@pytest.mark.parametrize("labels", [1, 3])
def test_classifier_returns_all_contributions_as_a_frame(labels: int) -> None:
    pytest.importorskip("pandas", reason="FastKANClassifier.explain returns a pandas frame")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = X[:, :labels] + 0.3 * rng.normal(size=(300, labels)) > 0
    model = FastKANClassifier(hidden=(8,), epochs=20, batch_size=64, random_state=0, n_jobs=1, device="cpu")
    model.fit(X, y[:, 0] if labels == 1 else y.astype(np.int64))
    found, log_odds_NL = model.explain(X[:9]), model.decision_function(X[:9]).reshape(9, labels)
    for label, name in enumerate(model.labels_):
        frame = found if labels == 1 else found[name]
        assert [*frame.columns] == ["x0", "x1", "x2", "x3", "baseline"]
        np.testing.assert_allclose(frame.sum(axis=1), log_odds_NL[:, label], atol=1e-4)
        assert frame.drop(columns="baseline").abs().mean().idxmax() == f"x{label}"
