"""The search for basis functions and depth: finds what the rows need, and the run keeps what was found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.interactions import collisions
from dkan_core import ConfigError, FastKANClassifier, PrepareConfig, TrainConfig, TrainResult, prepare, train
from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData, open_prepared
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import RowReader, all_batches, open_split
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import score
from dkan_core.training.launcher.resuming import checkpoint_folder
from dkan_core.training.planning.lr_sweep import tune_learning_rate
from dkan_core.training.setup import architecture, architecture_search, search_space, trials
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.model_parallel_checks import undivided
from dkan_core.training.state.checkpoint_store import load_checkpoint, save_checkpoint

ROWS = 80_000
SHORT = TrainConfig(epochs=1, batch_size=100, seed=3, workers=1, device="cpu", blend=False)


@pytest.fixture
def all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have networks read all columns, without a look for those that say nothing."""
    monkeypatch.setattr(architecture, "select_features", lambda *args: args[2])


def chosen(folder: Path) -> ModelConfig:
    with open_prepared(folder, "train") as (data, manifest), open_split(data, manifest, "train") as reader:
        config = resolve_for(TrainConfig(device="cpu"), manifest)
        assert config.architecture_search and (config.num_centers, config.dropout) == (8, 0.2)
        return choose_architecture(reader, manifest, config)


@pytest.mark.usefixtures("all_columns")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "expected"), [("interacting", (128, 32)), ("additive", (128,))])
def test_second_layer_is_for_columns_that_interact(kind: str, expected: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = collisions(rng, ROWS)
    if kind == "additive":
        score_B = sum(np.sin(2 * columns[f"azimuth_{index}"]) for index in range(5))
        columns["label"] = (rng.random(ROWS) < 1 / (1 + np.exp(-score_B))).astype(np.int8)
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    assert chosen(tmp_path / "data").hidden == expected


@pytest.mark.usefixtures("all_columns")
@pytest.mark.parametrize(("waves", "noise", "expected"), [(6, 0, (16, 0.0)), (6, 3, (8, 0.2)), (1, 0, (8, 0.2))])
def test_more_basis_functions_are_for_fine_functions_without_noise(
    waves: int, noise: float, expected: tuple[int, float], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    rows_BF = rng.uniform(-1, 1, (6_000, 4))
    score_B = np.sin(waves * rows_BF[:, 0]) + np.sin(waves * rows_BF[:, 1]) + noise * rng.normal(size=len(rows_BF))
    columns = {f"x{index}": rows_BF[:, index] for index in range(4)} | {"label": (score_B > 0).astype(np.int8)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    architecture = chosen(tmp_path / "data")
    assert (architecture.num_centers, architecture.dropout) == expected and architecture.hidden == (128,)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have each search find fine basis functions and a second layer; return its rows, in a list that grows."""
    searched: list[int] = []

    def search(
        reader: RowReader, prepared: PreparedData, architecture: ModelConfig, config: ResolvedTrainConfig
    ) -> ResolvedTrainConfig:
        searched.append(reader.rows)
        return search_space.deepened(search_space.refined(config))

    monkeypatch.setattr(search_space, "SEARCH_ROWS", 100)
    monkeypatch.setattr(architecture, "search_architecture", search)
    return searched


def test_run_and_what_resumes_it_have_what_was_found(prepared: Path, tmp_path: Path, always: list[int]) -> None:
    result = train(prepared, tmp_path / "run", SHORT)
    assert SavedModel(Path(result.model)).config.hidden == (128, 32) and len(always) == 1
    found = result.metrics["training"]
    assert (found["hidden"], found["num_centers"], found["dropout"]) == ([128, 32], 16, 0.0)
    settings = (tmp_path / "run/config.toml").read_text()
    for line in ("# hidden = [128, 32]", "# num_centers = 16", "# dropout = 0.0"):
        assert line in settings

    for other in ({"hidden": (128,)}, {"num_centers": 8}, {"dropout": 0.2}, {"architecture_search": False}):
        with pytest.raises(ConfigError, match=r"was trained with hidden \[128, 32\], not \[128\]"):
            train(prepared, tmp_path / "run", replace(SHORT, epochs=2, resume="auto", **other))
    same = replace(SHORT, resume="auto", hidden=(128, 32), num_centers=16, dropout=0.0)
    assert train(prepared, tmp_path / "run", same).average_precision == result.average_precision

    longer = train(prepared, tmp_path / "run", replace(SHORT, epochs=2, resume="auto"))
    assert longer.history[-1]["epoch"] == 2 and SavedModel(Path(longer.model)).config.hidden == (128, 32)
    assert len(always) == 1

    again = train(prepared, tmp_path / "again", replace(SHORT, init_from=result.model))
    assert SavedModel(Path(again.model)).config.hidden == (128, 32) and len(always) == 1


def test_parts_are_checked_before_a_search(prepared: Path, tmp_path: Path, always: list[int]) -> None:
    """A part may be of the second layer, which only a search adds."""
    with pytest.raises(ConfigError, match=r"lr_multipliers netwrk: the model has no such part; it has bias, encoder, "):
        train(prepared, tmp_path / "run", replace(SHORT, lr_multipliers=("netwrk=0.1",)))
    assert not always
    train(prepared, tmp_path / "deep", replace(SHORT, lr_multipliers=("network.rest.1=0.1",)))
    assert always


@pytest.mark.parametrize("change", [search_space.refined, search_space.deepened], ids=["fine", "deep"])
def test_run_resumes_with_what_was_found(
    change: Callable[[ResolvedTrainConfig], ResolvedTrainConfig],
    prepared: Path,
    tmp_path: Path,
    always: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(architecture, "search_architecture", lambda *args: change(args[-1]))
    first = train(prepared, tmp_path / "run", SHORT)
    longer = train(prepared, tmp_path / "run", replace(SHORT, epochs=2, resume="auto"))
    found, kept = (SavedModel(Path(each.model)).config for each in (first, longer))
    assert longer.history[-1]["epoch"] == 2 and not always
    assert (found.hidden, found.num_centers) == (kept.hidden, kept.num_centers) != ((128,), 8)


def test_checkpoint_that_is_older_than_the_search_resumes_with_its_layers(
    prepared: Path, tmp_path: Path, always: list[int]
) -> None:
    train(prepared, tmp_path / "run", replace(SHORT, architecture_search=False))
    found = load_checkpoint(str(tmp_path / "run/checkpoints"))
    assert found is not None
    settings = {name: value for name, value in found[1].settings.items() if name != "architecture_search"}
    save_checkpoint(str(tmp_path / "run/checkpoints"), replace(found[1], settings=settings))
    longer = train(prepared, tmp_path / "run", replace(SHORT, epochs=2, resume="auto"))
    assert longer.history[-1]["epoch"] == 2 and SavedModel(Path(longer.model)).config.hidden == (128,)
    assert not always


def test_runs_that_search_and_runs_that_do_not_have_different_checkpoints(prepared: Path, always: list[int]) -> None:
    with open_prepared(prepared, "train") as (_, manifest):
        asked = TrainConfig(device="cpu", checkpoint_uri="{run}")
        others = (
            asked,
            replace(asked, dropout=0.2),
            replace(asked, architecture_search=False),
            replace(asked, hidden=(128,)),
        )
        found = [checkpoint_folder(resolve_for(each, manifest), manifest.fingerprint) for each in others]
    assert len({*found}) == 2 and found[0] not in found[1:] and not always


def test_classifier_that_trains_once_more_searches_once(always: list[int]) -> None:
    X = np.random.default_rng(0).normal(size=(300, 4))
    model = FastKANClassifier(epochs=1, refit=True, random_state=0, n_jobs=1).fit(X, X[:, 0] > 0)
    assert model.architecture_.hidden == (128, 32) and len(always) == 1


def test_second_training_keeps_the_layers_of_the_first(prepared: Path, tmp_path: Path, always: list[int]) -> None:
    result = train(prepared, tmp_path / "run", replace(SHORT, refit=True))
    assert SavedModel(Path(result.model)).config.hidden == (128, 32) and len(always) == 1


def test_sweep_of_learning_rates_searches_once(prepared: Path, always: list[int]) -> None:
    assert len(tune_learning_rate(prepared, SHORT, factors=(1.0, 2.0), steps=2, repeats=1).trials) == 2
    assert len(always) == 1


@pytest.mark.parametrize(
    "asked",
    [
        TrainConfig(hidden=(8,)),
        TrainConfig(num_centers=8),
        TrainConfig(dropout=0.2),
        TrainConfig(architecture_search=False),
        TrainConfig(model="fastkan"),
        TrainConfig(model="additive"),
        TrainConfig(strategy="tensor-parallel", workers=2),
    ],
    ids=["hidden", "num_centers", "dropout", "architecture_search", "fastkan", "additive", "tensor-parallel"],
)
def test_nothing_is_searched_where_it_is_given(prepared: Path, always: list[int], asked: TrainConfig) -> None:
    with open_prepared(prepared, "train") as (data, manifest), open_split(data, manifest, "train") as reader:
        choose_architecture(reader, manifest, resolve_for(replace(asked, device="cpu"), manifest))
    assert not always


@pytest.fixture
def small_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have architectures compared on a hundred rows or more, and depth as well."""
    for module in (search_space, trials):
        monkeypatch.setattr(module, "SEARCH_ROWS", 100)
    monkeypatch.setattr(architecture_search, "DEPTH_SEARCH_ROWS", 100)


def searched(folder: Path, **settings: Any) -> ModelConfig:
    with open_prepared(folder, "train") as (data, manifest), open_split(data, manifest, "train") as reader:
        config = resolve_for(TrainConfig(device="cpu", **settings), manifest)
        return choose_architecture(reader, manifest, config)


@pytest.mark.parametrize(
    ("values", "count"), [(50, 0), (150, 2), (250, 3)], ids=["too few rows", "too few for depth", "enough"]
)
def test_rows_follow_from_the_columns(
    values: int, count: int, prepared: Path, small_search: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_prepared(prepared, "train") as (_, manifest):
        columns = len(manifest.preprocessor.numeric) + len(manifest.preprocessor.coded)
    monkeypatch.setattr(architecture_search, "DEPTH_SEARCH_ROWS", 200)
    monkeypatch.setattr(trials, "SAMPLE_VALUES", values * columns)
    trained, train_one = list[ModelConfig](), trials.trained

    def train_and_note(network: ModelConfig, *args: Any) -> TabularModel:
        trained.append(network)
        return train_one(network, *args)

    monkeypatch.setattr(architecture_search, "trained", train_and_note)
    assert searched(prepared, sketch_rank=20).sketch_rank == 20
    assert len(trained) == count and not any(each.sketch_rank for each in trained)


@pytest.mark.parametrize(
    ("fine", "deep", "expected"),
    [
        (0.40, 0.40, ((128,), 8, 0.2)),
        (0.40, 0.30, ((128, 32), 8, 0.0)),
        (0.30, 0.30, ((128,), 16, 0.0)),
        (0.30, 0.20, ((128, 32), 16, 0.0)),
    ],
    ids=["neither", "deep", "fine", "both"],
)
def test_what_has_less_loss_is_found(
    fine: float,
    deep: float,
    expected: tuple[tuple[int, ...], int, float],
    prepared: Path,
    small_search: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def losses(network: ModelConfig | None, *_: object) -> npt.NDArray[np.float64]:
        if network is None:
            return np.full(100, 0.7)
        assert network.members == 1 and network.dropout == 0.0
        return np.full(100, deep if len(network.hidden) > 1 else fine if network.num_centers == 16 else 0.40)

    monkeypatch.setattr(architecture_search, "trained", lambda network, *_: network)
    monkeypatch.setattr(architecture_search, "untrained_model", lambda *_: SimpleNamespace(eval=lambda: None))
    monkeypatch.setattr(architecture_search, "losses", losses)
    found = searched(prepared, members=1)
    assert (found.hidden, found.num_centers, found.dropout) == expected


@pytest.mark.parametrize(
    ("gains", "constant", "expected"),
    [
        ((0.04, 0.04), 0.97, True),
        ((0.02, 0.02), 0.97, False),
        ((0.54, -0.46), 0.97, False),
        ((0.04, 0.04), 0.95, False),
    ],
    ids=["enough", "too small a share", "too uncertain", "worse than a constant"],
)
def test_change_must_be_worth_it(gains: tuple[float, float], constant: float, expected: bool) -> None:
    with_N = 1 - np.tile(gains, 50)
    min_improvement = trials.MinImprovement(standard_errors=2.0, relative=0.03)
    assert trials.helps("x", np.ones(100), with_N, min_improvement, constant=constant, weight=1.0) is expected


def test_losses_in_the_log_are_those_of_a_row_whatever_rows_weigh(caplog: pytest.LogCaptureFixture) -> None:
    min_improvement = trials.MinImprovement(standard_errors=2.0, relative=0.03)
    with caplog.at_level("INFO"):
        trials.helps("x", np.full(100, 500.0), np.full(100, 400.0), min_improvement, constant=900.0, weight=1000.0)
    assert "0.4000 instead of 0.5000 (an improvement of at least 0.0150" in caplog.text


@pytest.mark.usefixtures("all_columns")
def test_noise_of_rare_categories_is_no_reason_for_more_basis_functions(tmp_path: Path) -> None:
    """Networks that learn it are worse than a constant, and the ones with other basis functions less so."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"c{index}": rng.integers(6_000, size=12_000).astype(str) for index in range(5)}
    columns |= {"x": rng.normal(size=12_000), "label": rng.integers(2, size=12_000)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    assert chosen(tmp_path / "data").num_centers == 8


def held_out(group_N: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    held_N = trials.held_out({"labels": np.zeros((len(group_N), 1), np.uint8), "group": group_N})
    assert held_N is not None
    return held_N


def test_groups_are_held_out_whole() -> None:
    rng = np.random.default_rng(0)
    group_N = rng.integers(1000, size=5000).astype(np.int64)
    held_out_N = held_out(group_N)
    assert not {*group_N[held_out_N].tolist()} & {*group_N[~held_out_N].tolist()}
    assert 0.15 < held_out_N.mean() < 0.25


def test_stretches_of_time_are_held_out_all_over_it() -> None:
    stretch_N = np.repeat(np.arange(32, dtype=np.uint8), 100)
    held_out_N = held_out(stretch_N)
    assert (np.diff(np.unique(stretch_N[held_out_N])) == trials.FOLDS).all()
    assert 0.15 < held_out_N.mean() < 0.25


def test_a_large_group_leaves_others_to_hold_out() -> None:
    for large in range(10):
        group_N = np.append(np.full(2500, large), np.arange(10).repeat(750)).astype(np.uint8)
        held_out_N = held_out(group_N)
        assert trials.MIN_HELD_OUT <= held_out_N.mean() <= trials.MAX_HELD_OUT


def test_what_stands_for_divided_models_has_their_architecture(prepared: Path, always: list[int]) -> None:
    asked = TrainConfig(device="cpu", workers=2, strategy="tensor-parallel")
    with open_prepared(prepared, "train") as (_, manifest):
        assert not resolve_for(undivided(asked), manifest).architecture_search
        assert resolve_for(undivided(replace(asked, strategy="auto")), manifest).architecture_search and not always


def test_nothing_is_tried_on_rows_of_one_group(
    prepared: Path, small_search: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architecture_search, "trained", lambda *_: pytest.fail("a network was trained"))
    with open_prepared(prepared, "train") as (data, manifest), open_split(data, manifest, "train") as reader:
        config = resolve_for(TrainConfig(device="cpu"), manifest)
        rows = next(all_batches(reader, reader.rows))
        one_group = ArraysReader({**rows, "group": np.zeros(reader.rows, np.uint8)})
        assert choose_architecture(one_group, manifest, config).hidden == config.hidden


def test_loss_of_a_row_is_that_of_its_measured_labels(prepared: Path, trained: TrainResult) -> None:
    with open_prepared(prepared, "valid") as (data, manifest), open_split(data, manifest, "valid") as reader:
        rows = next(all_batches(reader, 50))
    model = SavedModel(Path(trained.model)).module
    positive_N = score(model, rows, torch.device("cpu"))[:, 0]
    label_N = rows["labels"][:, 0].copy()
    rows["labels"][::2] = NOT_MEASURED
    expected_N = np.where(label_N == 1, -20 * np.log(positive_N), -np.log(1 - positive_N))
    expected_N[::2] = 0
    config = resolve_for(TrainConfig(device="cpu", pos_weight=5.0, label_weights=(4.0,)), manifest)
    expected_N = np.where(label_N == 1, expected_N, 4 * expected_N)
    np.testing.assert_allclose(trials.losses(model, rows, config), expected_N, rtol=1e-4, atol=1e-5)
    weight_N = np.where(label_N == 1, 20, 4)
    weight_N[::2] = 0
    assert trials.mean_weight(rows, config) == weight_N.mean(), "the mean loss is a weighted mean"
