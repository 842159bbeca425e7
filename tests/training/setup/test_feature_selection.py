"""Columns that a network ignores: those that say nothing are found, and every part of a model knows of them."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import (
    ConfigError,
    DataError,
    FastKANClassifier,
    PrepareConfig,
    TrainConfig,
    evaluate,
    explain,
    predict,
    prepare,
    train,
)
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.format.manifest import open_prepared
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.model.architecture import ModelConfig, features_of, ignoring
from dkan_core.model.saved_model import SavedModel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.setup import architecture, feature_selection, search_space, trials
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.weight_transfer import reading_all
from dkan_core.training.state.checkpoint_store import load_checkpoint, save_checkpoint
from tests.model.architectures import CONFIG, changed

ROWS, NOISE = 3_600, 16
SHORT = TrainConfig(epochs=1, batch_size=100, seed=3, workers=1, device="cpu", blend=False)


def table(rows: int, seed: int = 0) -> pa.Table:
    """Return rows whose label depends on two numbers, which interact, and a category; the rest is noise."""
    rng = np.random.default_rng(seed)
    x_N, z_N, site_N = rng.normal(size=rows), rng.normal(size=rows), rng.choice(["north", "south", "west"], rows)
    score_N = 2 * x_N * z_N + 2 * (site_N == "north") - 1 + rng.logistic(size=rows) / 2
    columns: dict[str, Any] = {"x": x_N, "z": z_N, "site": site_N, "late": (score_N > 0).astype(np.int8)}
    columns |= {f"noise_{index}": rng.normal(size=rows) for index in range(NOISE)}
    return pa.table({**columns, "flag": rng.integers(2, size=rows), "kind": rng.choice(["a", "b", "c"], rows)})


def log_odds(scores: Path) -> Any:
    found = pq.read_table(scores)["late_probability"].to_numpy()
    return np.log(found / (1 - found))


def names(config: ModelConfig, folder: Path) -> set[str]:
    with open_prepared(folder, "train") as (_, manifest):
        features = [*manifest.preprocessor.numeric, *manifest.preprocessor.coded]
    return {features[index].name for index in config.ignored_features}


def chosen(folder: Path, change: Any = lambda rows: rows, **settings: Any) -> ModelConfig:
    with open_prepared(folder, "train") as (data, manifest), open_split(data, manifest, "train") as reader:
        config = resolve_for(TrainConfig(device="cpu", **settings), manifest)
        rows = change(next(all_batches(reader, reader.rows)))
        return choose_architecture(ArraysReader(rows), manifest, config)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noisy")
    pq.write_table(table(ROWS), folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("late",)))
    return folder


@pytest.fixture(scope="module")
def run(noisy: Path) -> Path:
    """Return a run whose network ignores columns, without an additive model that would read them."""
    train(noisy / "data", noisy / "run", SHORT)
    return noisy / "run"


def test_columns_of_noise_are_ignored_and_no_other(noisy: Path, run: Path) -> None:
    found = names(SavedModel(run / "model").config, noisy / "data")
    assert len(found) > NOISE / 2 and not found & {"x", "z", "site"}
    (line,) = [each for each in (run / "logs/train.log").read_text().splitlines() if " ignoring " in each]
    assert "noise_" in line and ": used; log loss on unseen rows" in line


def test_all_are_read_where_no_column_is_useless_or_none_is_looked_for(noisy: Path, tmp_path: Path) -> None:
    pq.write_table(table(ROWS).select(["x", "z", "site", "late"]), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("late",)))
    assert not chosen(tmp_path / "data").ignored_features
    for settings in ({"architecture_search": False}, {"hidden": (8,)}, {"model": "fastkan"}, {"model": "additive"}):
        assert not chosen(noisy / "data", **settings).ignored_features


@pytest.mark.parametrize(
    ("module", "limit", "rows"),
    [(feature_selection, "MAX_ROWS", 1_000), (feature_selection, "MAX_VALUES", 1_000), (trials, "SEARCH_ROWS", 10_000)],
)
def test_nothing_is_tried_on_too_many_rows_or_too_few(
    module: Any, limit: str, rows: int, noisy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, rows)
    monkeypatch.setattr(feature_selection, "trained", lambda *_: pytest.fail("a network was trained"))
    assert not chosen(noisy / "data").ignored_features


def test_nothing_is_tried_on_rows_of_few_groups(noisy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_selection, "trained", lambda *_: pytest.fail("a network was trained"))

    def in_groups(rows: Any) -> Any:
        group_N = (np.arange(len(rows["labels"])) % 3).astype(np.uint8)
        return {**rows, "group": group_N}

    assert not chosen(noisy / "data", in_groups).ignored_features


def test_a_network_that_ignores_columns_scores_without_them(run: Path, noisy: Path, tmp_path: Path) -> None:
    saved = SavedModel(run / "model")
    ignored = names(saved.config, noisy / "data")
    assert ignored and json.loads((run / "model/config.json").read_text())["ignored_features"]
    rows = table(300, seed=1)
    pq.write_table(rows, tmp_path / "rows.parquet")
    for name in ignored:
        values = pa.array([None] * len(rows), rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), name, values)
    pq.write_table(rows, tmp_path / "none.parquet")
    for name in ("rows", "none"):
        predict(run, tmp_path / f"{name}.parquet", tmp_path / f"scores-{name}.parquet")
    first, second = (pq.read_table(tmp_path / f"scores-{name}.parquet") for name in ("rows", "none"))
    assert first["late_probability"].equals(second["late_probability"])


def test_reports_and_explanations_know_of_ignored_columns(run: Path, noisy: Path, tmp_path: Path) -> None:
    ignored = names(SavedModel(run / "model").config, noisy / "data")
    evaluate(run, noisy / "data", tmp_path / "eval", split="test", explain=False)
    page = (tmp_path / "eval/report.html").read_text()
    assert "columns that the network ignores" in page and min(ignored) in page
    card = (run / "model/README.md").read_text().replace("\\", "")
    (line,) = [each for each in card.split("\n") if each.startswith("- Columns that the network ignores: ")]
    assert {*line.partition(": ")[2].split(", ")} == ignored
    found = explain(run, noisy / "data", tmp_path / "explain").labels["late"]
    effects = {each.name: each.effect for each in found.importance}
    assert all(effects[name] == 0 for name in ignored) and effects["x"] > 0.1


def test_run_resumes_and_trains_once_more_without_them(noisy: Path, run: Path, tmp_path: Path) -> None:
    ignored = SavedModel(run / "model").config.ignored_features
    shutil.copytree(run, tmp_path / "run")
    again = train(noisy / "data", tmp_path / "run", replace(SHORT, epochs=2, resume="auto", refit=True))
    assert again.history[-1]["epoch"] == 2
    assert SavedModel(Path(again.model)).config.ignored_features == ignored
    found = load_checkpoint(str(tmp_path / "run/checkpoints"))
    assert found is not None
    others = {**found[1].architecture, "ignored_features": list(ignored[1:])}
    save_checkpoint(str(tmp_path / "run/checkpoints"), replace(found[1], architecture=others))
    with pytest.raises(DataError, match="expected shape"):
        train(noisy / "data", tmp_path / "run", replace(SHORT, epochs=3, resume="auto"))


def test_training_that_continues_reads_them_from_where_it_was(noisy: Path, run: Path, tmp_path: Path) -> None:
    rows = table(ROWS, seed=2)
    rows = rows.append_column("later", pa.array(np.random.default_rng(3).normal(size=ROWS)))
    pq.write_table(rows, tmp_path / "rows.parquet")
    known = PrepareConfig(label=("late",), like=str(run / "model"))
    prepare(tmp_path / "rows.parquet", tmp_path / "same", known)
    prepare(tmp_path / "rows.parquet", tmp_path / "wider", replace(known, extend=True))
    before = SavedModel(run / "model").config
    for data, more in (("same", 0), ("wider", 1)):
        still = replace(SHORT, init_from=str(run / "model"), learning_rate=1e-12)
        made = train(tmp_path / data, tmp_path / f"run-{data}", still)
        found = SavedModel(Path(made.model)).config
        assert not found.ignored_features and len(found.inputs.curved) == found.num_numeric - len(found.binary)
        assert len(found.inputs.curved) > len(before.inputs.curved) + more
        # Its answers are those of the model that it starts from.
        for name, model in (("old", run / "model"), ("new", made.model)):
            predict(model, tmp_path / "rows.parquet", tmp_path / f"{name}.parquet", overwrite=True)
        old, new = (
            pq.read_table(tmp_path / f"{name}.parquet")["late_probability"].to_numpy() for name in ("old", "new")
        )
        assert np.corrcoef(np.log(old / (1 - old)), np.log(new / (1 - new)))[0, 1] > 0.999999
    with pytest.raises(ConfigError, match="init_optimizer kept: there are columns that the model has ignored"):
        train(tmp_path / "same", tmp_path / "no", replace(SHORT, init_from=str(run), init_optimizer="kept"))
    with pytest.raises(ConfigError, match=r"which are renumbered; name encoder\.embeddings as a whole"):
        train(tmp_path / "same", tmp_path / "no", replace(SHORT, init_from=str(run), freeze=("encoder.embeddings.0",)))


@pytest.mark.parametrize("settings", [{"sketch_rank": 4}, {"input_norm": "layer"}])
def test_nothing_is_tried_where_inputs_are_mixed(
    settings: dict[str, Any], noisy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_selection, "trained", lambda *_: pytest.fail("a network was trained"))
    assert not chosen(noisy / "data", **settings).ignored_features


def test_nothing_is_tried_with_several_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_selection, "trained", lambda *_: pytest.fail("a network was trained"))
    rows = table(ROWS)
    rows = rows.append_column("rare", pa.array((rows["noise_0"].to_numpy() > 1.5).astype(np.int8)))
    pq.write_table(rows, tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("late", "rare")))
    assert not chosen(tmp_path / "data").ignored_features


def test_chunks_of_a_stream_do_not_decide_about_later_ones() -> None:
    model = FastKANClassifier(random_state=0, n_jobs=1, blend=False)
    for seed in range(2):
        rows = table(ROWS, seed).to_pandas()
        model.partial_fit(rows.drop(columns="late"), rows["late"], classes=[0, 1])
    assert not model.architecture_.ignored_features


def test_estimator_ignores_them_in_both_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def select(reader: Any, prepared: Any, whole: ModelConfig, config: Any) -> ModelConfig:
        searched.append(reader.rows)
        return ignoring(whole, [1])

    monkeypatch.setattr(search_space, "SEARCH_ROWS", 100)
    monkeypatch.setattr(architecture, "search_architecture", lambda *args: args[-1])
    monkeypatch.setattr(architecture, "select_features", select)
    X = np.random.default_rng(0).normal(size=(400, 3))
    model = FastKANClassifier(epochs=1, refit=True, blend=False, random_state=0, n_jobs=1).fit(X, X[:, 0] > 0)
    assert model.architecture_.ignored_features == (1,) and len(searched) == 1
    moved = np.array(X)
    moved[:, 1] += 1
    np.testing.assert_array_equal(model.predict_proba(moved), model.predict_proba(X))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ignored_features": (9,)}, "ignored_features: must hold indexes below"),
        ({"ignored_features": (0, 0)}, "ignored_features: holds a value twice"),
        ({"ignored_features": (3,), "indicators": ((0,),)}, "ignored_features: feature 3 has weights of its own"),
        ({"ignored_features": (0,), "model": "fastkan", "members": 1}, "must be empty for model fastkan"),
        (
            {"ignored_features": (0, 1, 2, 3, 4), "indicators": (), "missing": ()},
            "ignored_features: there must be one that the network reads",
        ),
    ],
)
def test_architecture_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ModelConfig.from_dict({**CONFIG.to_dict(), **changes})


def test_missing_values_of_ignored_columns_count_again() -> None:
    rows = pa.table({"m": [1.0, None, 2.0, 3.0] * 50, "k": ["a", "b"] * 100})
    encoding = fit_preprocessor(rows, ("m",), ("k",), "uint8", "rows")
    (missing,) = [index for index, feature in enumerate(encoding.coded) if feature.name == "m"]
    whole = changed(CONFIG, **{**features_of(encoding, "auto"), "indicators": (), "missing": (missing,)})
    model = TabularFastKAN(ignoring(whole, (0, whole.num_numeric + missing))).eval()
    again = reading_all(model, encoding)
    assert model.config.missing == () and again.config.missing == (missing,)
    codes = torch.zeros((3, len(whole.cardinalities)), dtype=torch.int32)
    numeric = torch.tensor([[0], [10], [200]], dtype=torch.uint8)
    torch.testing.assert_close(again(numeric, codes), model(numeric, codes))


def test_what_is_ignored_has_no_weights() -> None:
    whole = changed(CONFIG, binary=(1,), embedded=(0, 1), indicators=((0,), (1,), (0, 1)), missing=())
    numeric = whole.num_numeric
    fewer = ignoring(whole, [numeric, 1])
    assert fewer.inputs == (tuple(index for index in range(numeric) if index != 1), (), (1,))
    assert fewer.ignored_features == (1, numeric) and fewer.one_hot_groups == ((1,),)
    assert ModelConfig.from_dict(fewer.to_dict()) == fewer


def test_columns_that_each_say_a_little_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some raise the loss of the very rows that they are judged by; to leave them out helps on those rows alone."""
    rng = np.random.default_rng(1)
    parts_NC = rng.normal(size=(2_300, 100))
    late_N = parts_NC @ rng.normal(0, 0.15, 100) > rng.logistic(size=len(parts_NC))
    columns = {f"part_{index}": part_N for index, part_N in enumerate(parts_NC.T)}
    pq.write_table(pa.table({**columns, "late": late_N.astype(np.int8)}), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("late",), split="94/3/3"))
    with caplog.at_level(logging.INFO):
        assert not chosen(tmp_path / "data").ignored_features
    (line,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith("ignoring part_")]
    assert ": not used; log loss on unseen rows" in line
