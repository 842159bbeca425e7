"""Training that starts from a saved model: its weights, its architecture, its encoding, and what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, TrainConfig, TrainResult, evaluate, main, prepare, train, tune_learning_rate
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.roles.in_process import train_single
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.initial_model import initial_model, take_initial
from tests.command import check, dkan

SMALL = TrainConfig(blend=False, epochs=1, workers=1, device="cpu", batch_size=64)
STILL = replace(SMALL, learning_rate=1e-12)


@pytest.fixture(scope="module")
def newer(source: Path, trained: TrainResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare other rows, with drifted values, as the trained model knows them."""
    folder = tmp_path_factory.mktemp("newer")
    table = pq.read_table(source).take(np.random.default_rng(1).permutation(569)[:300])
    drifted = pa.array(table["mean_radius"].to_numpy(zero_copy_only=False) * 1.05, from_pandas=True)
    table = table.set_column(table.schema.names.index("mean_radius"), "mean_radius", drifted)
    pq.write_table(table, folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(like=trained.model))
    return folder / "data"


@pytest.fixture(scope="module")
def before(trained: TrainResult, newer: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return what the model scores on the new validation rows."""
    out = tmp_path_factory.mktemp("before") / "eval"
    return float(evaluate(trained.model, newer, out, split="valid", explain=False).metrics["average_precision"])


@pytest.mark.parametrize("strategy", ["parameter-server", "allreduce", "local-sgd", "single"])
def test_without_learning_the_model_stays_as_it_was(
    strategy: Any, trained: TrainResult, newer: Path, before: float, tmp_path: Path
) -> None:
    """Ring and ddp share all of this with allreduce."""
    workers = 1 if strategy == "single" else 2
    config = replace(STILL, strategy=strategy, workers=workers, init_from=str(Path(trained.model).parent))
    result = train(newer, tmp_path / "run", config)
    assert result.history[0]["average_precision"] == pytest.approx(before, abs=1e-9)
    assert result.metrics["training"]["hidden"] == [8]  # the model's, not what is chosen for so many rows
    assert str(tmp_path) not in str(result.metrics["training"]["init_from"])
    old, new = (SavedModel(Path(path)).module for path in (trained.model, result.model))
    for name, tensor in old.named_parameters():
        np.testing.assert_allclose(new.state_dict()[name].numpy(), tensor.detach().numpy(), atol=1e-6)


def test_in_one_process_it_starts_there_too(trained: TrainResult, newer: Path, before: float) -> None:
    manifest = read_manifest(newer)
    config, initial = take_initial(replace(STILL, init_from=trained.model), manifest, newer, "")
    config = resolve(config, manifest.splits["train"].rows)
    with open_split(newer, manifest, "train") as rows, open_split(newer, manifest, "valid") as valid:
        result = train_single(rows, valid, manifest, config, initial)
    assert result.history[0]["average_precision"] == pytest.approx(before, abs=1e-9)
    tuned = tune_learning_rate(newer, replace(STILL, init_from=trained.model), factors=(1.0,), steps=2, repeats=1)
    assert tuned.trials[0].average_precision[0] == pytest.approx(before, abs=1e-9)


def test_calibration_is_redone(trained: TrainResult, newer: Path) -> None:
    manifest = read_manifest(newer)
    config, initial = take_initial(replace(STILL, init_from=trained.model), manifest, newer, "")
    assert initial is not None and initial.module.calibration_scale.item() != 1
    settings = resolve(config, manifest.splits["train"].rows)
    model = initial_model(initial.architecture, manifest, settings, initial)
    assert model.training and model.calibration_scale.item() == 1 and model.calibration_shift.item() == 0


def test_an_epoch_on_drifted_data_gives_more_than_from_scratch(tmp_path: Path) -> None:
    """The model has seen 4,000 rows; of the drifted ones there are 400, and a single epoch."""
    old, new = drifting_rows(4000, 0.0, seed=0), drifting_rows(1200, 0.3, seed=1)
    for name, table in (("old", old), ("new", new)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    prepare(tmp_path / "old.parquet", tmp_path / "old", PrepareConfig(label=("y",)))
    config = replace(SMALL, hidden=(16,), members=1, model="fastkan", dropout=0.0)
    first = train(tmp_path / "old", tmp_path / "first", replace(config, epochs=4))
    prepare(tmp_path / "new.parquet", tmp_path / "new", PrepareConfig(like=first.model, split="34/33/33"))
    scratch = train(tmp_path / "new", tmp_path / "scratch", config)
    continued = train(tmp_path / "new", tmp_path / "continued", replace(SMALL, init_from=first.model))
    assert continued.average_precision > scratch.average_precision + 0.02


def drifting_rows(rows: int, shift: float, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)) + shift
    log_odds = 3 * np.sin(2 * x[:, 0]) + 2 * x[:, 1] ** 2 - 2 + (1 + shift) * x[:, 2]
    labels = (rng.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(np.int8)
    return pa.table({**{f"x{index}": x[:, index] for index in range(6)}, "y": labels})


def test_rows_that_the_models_before_were_trained_on_are_named(
    trained: TrainResult, source: Path, newer: Path, tmp_path: Path
) -> None:
    second = train(newer, tmp_path / "second", replace(SMALL, init_from=trained.model))
    third = train(newer, tmp_path / "third", replace(SMALL, init_from=second.model))
    for model in (second.model, third.model):
        warnings = evaluate(model, source, tmp_path / "eval", explain=False, overwrite=True).metrics["warnings"]
        because = f"{source.name} was among its training files"
        assert f"the model may have been trained on these rows: {because}" in warnings
    origins = [SavedModel(Path(each.model)).metrics["origin"] for each in (second, trained)]
    assert SavedModel(Path(third.model)).metrics["earlier_origins"] == origins


def test_resumed_run_needs_the_model_no_more_but_no_other_either(
    trained: TrainResult, newer: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """A run that is stopped after an epoch's worth of time goes on from its checkpoint alone."""
    shutil.copytree(trained.model, tmp_path / "model")
    config = replace(SMALL, epochs=3, init_from=str(tmp_path / "model"), learning_rate=0.01)
    whole = train(newer, tmp_path / "whole", config)
    stopped = train(newer, tmp_path / "run", replace(config, max_seconds=1e-3))
    assert stopped.metrics["training"]["ended"] == "time"
    (tmp_path / "model").rename(tmp_path / "gone")
    resumed = train(newer, tmp_path / "run", replace(config, resume="auto"))
    assert [e["average_precision"] for e in resumed.history][-1] == whole.history[-1]["average_precision"]
    assert resumed.metrics["training"]["init_from"] == whole.metrics["training"]["init_from"]
    known, expected = (SavedModel(Path(each.model)).metrics["earlier_origins"] for each in (resumed, whole))
    assert known == expected
    options = [
        "--no-blend",
        "--epochs",
        "3",
        "--batch-size",
        "64",
        "--learning-rate",
        "0.01",
        "--device",
        "cpu",
        "--workers",
        "1",
    ]
    for chosen, message in (
        ([], r"was trained with init_from sha256:\w+, not None"),
        (["--init-from", whole.model], r"was trained with init_from sha256:\w+, not sha256:\w+"),
        (["--init-from", tmp_path / "gone", "--hidden", "9"], r"hidden \(9,\): the model of init_from has \(8,\)"),
        (["--init-from", tmp_path / "none", "--hidden", "9"], r"hidden \(9,\): the model of init_from has \(8,\)"),
    ):
        arguments = ["train", newer, "--out", tmp_path / "run", "--resume", "auto", *options, *chosen]
        check(dkan(*arguments, monkeypatch=monkeypatch), capsys.readouterr().err, message)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("{newer}", ["--init-from", "{model}", "--members", "3"], r"members 3: the model of init_from has \d, which"),
        ("{newer}", ["--init-from", "{tmp}/none"], r"init_from .*none: no model there; expected a folder"),
        ("{newer}", ["--init-from", "{tmp}/none", "--resume", "auto"], r"init_from .*none: no model there"),
        ("{other}", ["--init-from", "{model}"], r"other: is not encoded as .*dkan prepare \.\.\. --like .*model"),
        ("{label}", ["--init-from", "{model}"], r"label: has labels late; .* was trained for label"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    data: str,
    options: list[str],
    message: str,
    trained: TrainResult,
    newer: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
) -> None:
    table = pq.read_table(source)
    if data == "{other}":
        prepare(source, tmp_path / "other", PrepareConfig(label=("label",), seed=1))
    if data == "{label}":
        names = ["late" if name == "label" else name for name in table.schema.names]
        pq.write_table(table.rename_columns(names), tmp_path / "late.parquet")
        prepare(tmp_path / "late.parquet", tmp_path / "label", PrepareConfig(label=("late",)))
    places = {"{newer}": newer, "{model}": trained.model, "{tmp}": tmp_path}
    places |= {f"{{{name}}}": tmp_path / name for name in ("other", "label")}
    for place, path in places.items():
        data, options = data.replace(place, str(path)), [option.replace(place, str(path)) for option in options]
    code = dkan("train", data, "--out", tmp_path / "run", *options, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["run", "run/model"])
def test_model_that_the_run_would_replace_is_refused(
    place: str, trained: TrainResult, newer: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    shutil.copytree(Path(trained.model).parent, tmp_path / "run")
    weights = (tmp_path / "run/model/model.safetensors").read_bytes()
    options = ["--out", tmp_path / "run", "--init-from", tmp_path / place, "--overwrite"]
    code = dkan("train", newer, *options, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"init_from .*: is in the folder of this run, which replaces it")
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == weights


def test_main_goes_on_from_a_model_that_it_trained(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    y = (x[:, 0] > 0.3).astype(int)
    config = TrainConfig(blend=False, epochs=1, hidden=(8,), device="cpu")
    first = main((x[:400], y[:400]), (x[400:], y[400:]), config, run=tmp_path / "first")
    config = TrainConfig(blend=False, epochs=1, learning_rate=1e-12, device="cpu", init_from=first.path)
    again = main((x[:300], y[:300]), (x[400:], y[400:]), config, run=tmp_path / "again")
    assert again.validation_average_precision == pytest.approx(first.validation_average_precision, abs=1e-9)
