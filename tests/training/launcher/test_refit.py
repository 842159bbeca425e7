"""The second training of a run, on train and valid together: docs/guides/train.md."""

import json
import logging
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from scipy.sparse import csr_matrix
from sklearn.datasets import load_breast_cancer

from dkan_core import (
    ConfigError,
    FastKANClassifier,
    PrepareConfig,
    TrainConfig,
    TrainResult,
    edit,
    evaluate,
    measure_drift,
    prepare,
    train,
)
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import open_split
from dkan_core.integrations.sklearn import training
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.communication.rendezvous import TorchRun
from dkan_core.training.launcher.refit import refit
from dkan_core.training.launcher.run import Outcome
from dkan_core.training.roles.in_process import train_single
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.state.endings import ENDINGS
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.refit_choices import CALIBRATION, RefitChoices
from tests.additive_data import prepare_rows
from tests.training.faults import slow_steps
from tests.training.processes import Background, wait_until
from tests.training.runs import CONFIG, write_rows

# The best epoch is not the last: a second training of all epochs would be another.
SMALL = TrainConfig(model="auto", members=2, hidden=(8,), epochs=4, learning_rate=0.05, device="cpu", workers=1)
UNBLENDED = replace(SMALL, blend=False)
TWICE = replace(CONFIG, epochs=2, refit=True)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"), 2_000)


@pytest.fixture(scope="module")
def small(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run without a second training."""
    return train(rows, tmp_path_factory.mktemp("small") / "run", SMALL)


@pytest.fixture(scope="module")
def refitted(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """The same run with one."""
    return train(rows, tmp_path_factory.mktemp("refitted") / "run", replace(SMALL, refit=True))


def weights(model: str | Path) -> bytes:
    return (Path(model) / "model.safetensors").read_bytes()


def chosen_on_valid(result: TrainResult) -> dict[str, Any]:
    """Return what is said of the labels, without the distribution of scores, which is the second model's own."""
    labels = result.metrics["labels"].items()
    return {label: {name: each[name] for name in each if name != "scores"} for label, each in labels}


def check_refitted(rows: Path, first: TrainResult, both: TrainResult) -> None:
    """Check that a model is of all rows, and that what was chosen on valid is that of the first one."""
    splits = read_manifest(rows).splits
    assert both.metrics["refit_rows"] == splits["train"].rows + splits["valid"].rows
    assert both.metrics["data"] == first.metrics["data"]
    assert chosen_on_valid(both) == chosen_on_valid(first)
    assert both.average_precision == first.average_precision and both.history[-1]["step"] == first.history[-1]["step"]
    assert both.metrics["step"] == first.metrics["step"] and both.metrics["refit_epochs"] == first.metrics["epoch"]
    assert weights(both.model) != weights(first.model)
    assert "second training run on train and valid together" in (Path(both.model) / "README.md").read_text()
    assert not (Path(both.model).parent / "refit").exists()


def test_model_is_of_all_rows_and_what_validation_chose_stays(
    rows: Path, small: TrainResult, refitted: TrainResult
) -> None:
    check_refitted(rows, small, refitted)
    earlier, later = (SavedModel(Path(each.model)).module for each in (small, refitted))
    assert isinstance(later, BlendedFastKAN) and refitted.metrics["blend"] == small.metrics["blend"]
    for name in CALIBRATION:
        assert getattr(later, name).tolist() == getattr(earlier, name).tolist()


def test_additive_model_is_of_all_rows_and_keeps_its_kind_of_tables(rows: Path, tmp_path: Path) -> None:
    config = replace(SMALL, model="additive", hidden=())
    first = train(rows, tmp_path / "first", config)
    both = train(rows, tmp_path / "both", replace(config, refit=True))
    check_refitted(rows, first, both)
    assert isinstance(SavedModel(Path(both.model)).module, AdditiveFastKAN)
    assert both.metrics["tables"] == first.metrics["tables"]


def test_second_training_is_that_of_one_process_on_the_joined_rows(
    rows: Path, small: TrainResult, refitted: TrainResult
) -> None:
    manifest = read_manifest(rows)
    choices = RefitChoices.of(small.metrics, small.history)
    config, joined = choices.settings(resolve_for(SMALL, manifest)), manifest.with_valid_in_train()
    with open_split(rows, joined, "train") as train_rows, open_split(rows, joined, "valid") as valid_rows:
        alone = train_single(train_rows, valid_rows, joined, config, choices=choices)
    assert config.epochs == round(small.metrics["epoch"]) < SMALL.epochs == config.schedule_epochs
    found = load_file(Path(refitted.model) / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in alone.model.state_dict().items()
    }


def test_choices_are_those_of_the_best_evaluation(rows: Path) -> None:
    labels = {"label": dict(zip(CALIBRATION, (1.5, -0.25), strict=True))}
    metrics = {"step": 20, "epoch": 2.4, "labels": labels}
    history = [
        {"step": 10, "average_precision_raw": 0.2, "average_precision_ema": 0.1},
        {"step": 20, "average_precision_raw": 0.3, "average_precision_ema": 0.4},
    ]
    choices = RefitChoices.of(metrics, history)
    assert choices.averaged and not RefitChoices.of({**metrics, "step": 10}, history).averaged
    assert [each.tolist() for each in choices.calibration] == [[1.5], [-0.25]]
    config = resolve_for(replace(SMALL, max_seconds=9.0), read_manifest(rows))
    second = choices.settings(config)
    assert (second.epochs, second.schedule_epochs, second.max_seconds) == (2, 4, None)
    assert RefitChoices.of({**metrics, "epoch": 0.2}, history).settings(config).epochs == 1
    with pytest.raises(ConfigError, match="refit: the model is of an earlier version"):
        RefitChoices.of({**metrics, "labels": {"label": {}}}, history)


def test_smoothed_tables_are_smoothed_as_before(tmp_path: Path) -> None:
    """A run that starts from a model has no fit."""
    rows = prepare_rows(tmp_path, ("label",))
    config = TrainConfig(model="additive", members=2, epochs=1, pairs="2", device="cpu", workers=1)
    begun = train(rows, tmp_path / "begun", config)
    again = train(rows, tmp_path / "again", replace(config, init_from=begun.model, refit=True))
    assert again.metrics["tables"] == "smoothed" and again.metrics["refit_rows"]
    assert {"curve_penalty", "pair_penalty"} <= again.metrics.keys()


def test_finished_run_gets_its_second_training_by_resuming(rows: Path, refitted: TrainResult, tmp_path: Path) -> None:
    expected = weights(refitted.model)
    train(rows, tmp_path / "run", SMALL)
    resumed = replace(SMALL, refit=True, resume="auto")
    assert weights(train(rows, tmp_path / "run", resumed).model) == expected
    # Both trainings are over: their ends are taken from checkpoints.
    assert weights(train(rows, tmp_path / "run", resumed).model) == expected
    assert len((tmp_path / "run" / "logs" / "train.log").read_text().split("nothing to train")) == 3
    # Without the setting it is the first model again, and that is said.
    assert weights(train(rows, tmp_path / "run", replace(SMALL, resume="auto")).model) != expected
    log = (tmp_path / "run" / "logs" / "train.log").read_text()
    assert "continue with --resume auto --refit" in log
    warning = "this run used --refit; resuming without it replaces its model with one trained on the train split only"
    assert warning in log


def test_other_choices_begin_the_second_training_anew(rows: Path, tmp_path: Path) -> None:
    """Also where they ask for as many epochs: metrics, thresholds and calibration are of those choices."""
    config = replace(SMALL, epochs=1, refit=True)
    train(rows, tmp_path / "run", config)
    other = replace(config, refit=False, evaluations_per_epoch=8, learning_rate=0.2)
    first = train(rows, tmp_path / "run", other, overwrite=True)
    kept = tmp_path / "run" / "checkpoints" / "refit"
    (before,) = kept.iterdir()
    again = train(rows, tmp_path / "run", replace(other, refit=True, resume="auto"))
    assert again.metrics["refit_rows"] and chosen_on_valid(again) == chosen_on_valid(first)
    assert len([each for each in kept.iterdir() if any(each.iterdir())]) == 1 and not any(before.iterdir())


def test_damaged_checkpoints_of_the_second_training_start_it_over(rows: Path, tmp_path: Path) -> None:
    config = replace(UNBLENDED, epochs=1, refit=True)
    expected = weights(train(rows, tmp_path / "run", config).model)
    for path in (tmp_path / "run" / "checkpoints" / "refit").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-100])
    again = train(rows, tmp_path / "run", replace(config, resume="auto"))
    assert weights(again.model) == expected
    assert "refit: starting over" in (tmp_path / "run" / "logs" / "train.log").read_text()


def test_failing_second_training_leaves_a_finished_run(rows: Path, tmp_path: Path) -> None:
    base = train(rows, tmp_path / "base", replace(UNBLENDED, epochs=1))
    config = replace(UNBLENDED, epochs=1, init_from=base.model)
    first = train(rows, tmp_path / "run", config)
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="refit: the init_from model no longer exists"):
        train(rows, tmp_path / "run", replace(config, resume="auto", refit=True))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["average_precision"] == first.average_precision
    # Of a second training that is done, nothing is given up for one that cannot begin.
    twice = train(rows, tmp_path / "twice", replace(config, init_from=str(tmp_path / "moved" / "model"), refit=True))
    (tmp_path / "moved").rename(tmp_path / "gone")
    kept = weights(twice.model)
    more = replace(config, init_from=str(tmp_path / "moved" / "model"), refit=True, resume="auto", epochs=2)
    with pytest.raises(ConfigError, match="refit: the init_from model no longer exists"):
        train(rows, tmp_path / "twice", more)
    assert weights(twice.model) == kept
    model = train(rows, tmp_path / "both", replace(UNBLENDED, epochs=1, refit=True)).model
    with pytest.raises(ConfigError, match="init_optimizer kept: the model comes from a refit"):
        train(rows, tmp_path / "more", replace(UNBLENDED, epochs=1, init_from=model, init_optimizer="kept"))


@pytest.mark.slow
def test_killed_second_training_goes_on_to_the_same_bits(
    rows: Path, start: Callable[..., Background], tmp_path: Path
) -> None:
    expected = weights(train(rows, tmp_path / "calm", TWICE).model)
    background = start(TWICE, **slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01))
    first = background.run / "model"
    kept = background.run / "checkpoints" / "refit"
    wait_until(lambda: kept.exists() and any(each.name.startswith("step-") for each in kept.rglob("*")))
    assert "refit_rows" not in SavedModel(first).metrics, "complete meanwhile, and the first one"
    os.kill(background.process.pid, signal.SIGKILL)
    background.wait()
    assert "refit_rows" not in (background.run / "metrics.json").read_text() and (background.run / "refit").exists()
    code, output = start(replace(TWICE, resume="auto")).wait()
    assert code == 0 and "nothing to train" in output and "resuming from step" in output, output
    assert weights(first) == expected and not (background.run / "refit").exists()


@pytest.mark.slow
def test_interrupted_second_training_leaves_the_first_model(
    rows: Path, start: Callable[..., Background], tmp_path: Path
) -> None:
    background = start(TWICE, **slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01))
    wait_until(lambda: (background.run / "refit" / "logs").exists() and bool(background.children()))
    os.kill(background.process.pid, signal.SIGINT)
    code, output = background.wait()
    assert code == 130 and "refit interrupted" in output, output
    assert re.search(r"^error: interrupted; .*; continue with --resume auto --refit$", output, re.MULTILINE), output
    assert "refit_rows" not in SavedModel(background.run / "model").metrics
    assert json.loads((background.run / "metrics.json").read_text())["training"]["ended"] == "interrupt"


def test_ctrl_c_after_the_last_step_of_the_first_training_prevents_the_second() -> None:
    first = Outcome([], Ledger(ended=ENDINGS.index("epochs")), {}, interrupted=True)
    not_read: Any = None
    assert refit(not_read, first, not_read).ledger.ending == "interrupt"


def test_no_second_training_once_the_time_is_up(rows: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = train(rows, tmp_path / "run", replace(CONFIG, max_seconds=0.05, refit=True))
    assert result.metrics["training"]["ended"] == "time" and "refit_rows" not in result.metrics
    assert "no refit: max_seconds is used up" in caplog.text


def test_rows_of_valid_are_known_to_the_model(rows: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = TrainConfig(model="additive", members=2, epochs=1, device="cpu", workers=1, refit=True)
    result = train(rows, tmp_path / "run", config)
    for split, warned in (("valid", True), ("test", False)):
        caplog.clear()
        evaluate(result.model, rows, tmp_path / split, split=split, explain=False)
        assert ("it was trained on train and valid together" in caplog.text) is warned
    caplog.clear()
    edit(result.model, [{"action": "scale", "term": "x0", "factor": 0.5}], tmp_path / "edited", data=rows)
    assert "it was trained on train and valid together" in caplog.text
    edited = SavedModel(tmp_path / "edited").metrics
    assert edited["average_precision"] == result.average_precision and edited["edits_split"] == "valid"


def test_torchrun_is_refused(rows: Path) -> None:
    torchrun = TorchRun(rank=0, size=2, local_size=2, host="node", port=1, agent_has_store=True, attempt="0")
    with pytest.raises(ConfigError, match="refit: not supported under torchrun"):
        resolve_for(replace(CONFIG, refit=True), read_manifest(rows), torchrun)


def test_classifier_is_trained_on_its_held_out_rows_as_well() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :3]
    settings: dict[str, Any] = {"hidden": (8,), "members": 2, "epochs": 3, "random_state": 0, "n_jobs": 1}
    first, both = (FastKANClassifier(**settings, refit=refit).fit(X, y) for refit in (False, True))
    assert both.metrics_["refit_rows"] == len(X) and len(both.history_) == len(first.history_) == 3
    assert both.validation_average_precision_ == first.validation_average_precision_
    assert (both.predict_proba(X) != first.predict_proba(X)).any()
    # An eval_set has no weights of its own, and partial_fit no second training.
    weighted = FastKANClassifier(**settings, refit=True).fit(X, y, np.full(len(X), 2.0), eval_set=(X[:100], y[:100]))
    assert weighted.metrics_["refit_rows"] == len(X) + 100
    assert "refit_rows" not in FastKANClassifier(**settings, refit=True).partial_fit(X, y).metrics_
    # The scale of the weights does not matter, and once the time is up there is none either.
    light = FastKANClassifier(**settings, refit=True).fit(X, y, np.full(len(X), 1e-4), eval_set=(X[:100], y[:100]))
    np.testing.assert_allclose(light.predict_proba(X), weighted.predict_proba(X), atol=2e-3)
    assert "refit_rows" not in FastKANClassifier(**settings, refit=True, max_seconds=1e-3).fit(X, y).metrics_


def test_classifier_joins_lists_of_ids_of_any_length() -> None:
    """Rows that were held out may have fewer ids than the longest of the others has, or more."""
    ones = np.random.default_rng(0).random((300, 30)) < 0.2
    label = ones[:, :5].sum(axis=1) > 0
    for longest in (0, 250):
        ones[:, 20:] = False
        ones[longest] = True
        valid = csr_matrix(ones[200:]), label[200:]
        model = FastKANClassifier(epochs=1, members=1, hidden=(4,), batch_size=64, refit=True)
        model.fit(csr_matrix(ones[:200]), label[:200], eval_set=[valid])
        assert model.predict_proba(csr_matrix(ones)).shape == (300, 2)


def test_rows_that_were_held_out_keep_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X, weight_N = rng.normal(size=(300, 2)), rng.exponential(size=300).astype(np.float32)
    seen: list[Any] = []

    def read(arrays: Any) -> ArraysReader:
        seen.append(arrays["weight"])
        return ArraysReader(arrays)

    monkeypatch.setattr(training, "ArraysReader", read)
    model = FastKANClassifier(hidden=(4,), epochs=1, refit=True, blend=False, random_state=0, n_jobs=1)
    model.fit(X, X[:, 0] > 0, weight_N)
    _, _, joined_N, _ = seen
    np.testing.assert_array_equal(np.sort(joined_N), np.sort(weight_N))


def test_scores_are_compared_with_those_of_the_model_itself(tmp_path: Path) -> None:
    """Few different scores: between those of the first model and of the second, most rows would change their bin."""
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "c"], 3_000, p=[0.3, 0.3, 0.4])
    label = (rng.random(3_000) < np.select([kind == "a", kind == "b"], [0.1, 0.4], 0.6)).astype(int)
    pq.write_table(pa.table({"kind": kind, "label": label}), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    result = train(tmp_path / "data", tmp_path / "run", replace(SMALL, refit=True))
    drift = measure_drift(result.model, tmp_path / "rows.parquet")
    (score,) = (column for column in drift.columns if column.kind == "score")
    assert score.psi is not None and score.psi < 0.1  # chance: valid has 300 rows
