"""Training with a sketched first layer: by several workers, resumed, continued, and what its model can do then."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file

from dkan_core import (
    ConfigError,
    DataError,
    PrepareConfig,
    TrainConfig,
    TrainResult,
    evaluate,
    explain,
    explain_rows,
    plan,
    predict,
    prepare,
    train,
)
from dkan_core.model.parameter_count import count_trained
from dkan_core.model.saved_model import SavedModel, save_model
from dkan_core.model.sketch import sketched_layers
from dkan_core.training.planning import measuring
from tests.command import check, dkan

RANK = 3
SKETCHED = TrainConfig(
    blend=False,
    sketch_rank=RANK,
    epochs=2,
    hidden=(8,),
    workers=1,
    device="cpu",
    batch_size=40,
    learning_rate=0.02,
    warmup_fraction=0.0,
    schedule="constant",
    seed=4,
)


def weights(result: TrainResult) -> dict[str, Any]:
    return load_file(Path(result.model) / "model.safetensors")


def same_bits(first: TrainResult, second: TrainResult) -> bool:
    found, expected = weights(first), weights(second)
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


@pytest.fixture(scope="module")
def sketched(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(prepared, tmp_path_factory.mktemp("sketched") / "run", SKETCHED)


def test_model_learns_and_is_smaller(sketched: TrainResult, trained: TrainResult) -> None:
    saved = SavedModel(Path(sketched.model))
    assert sketched.average_precision > 0.9 and (saved.config.sketch_rank, saved.config.sketch_seed) == (RANK, 4)
    assert saved.parameters() == count_trained(saved.config) < SavedModel(Path(trained.model)).parameters() / 3


def test_model_reads_back_to_the_same_function(sketched: TrainResult, tmp_path: Path) -> None:
    saved = SavedModel(Path(sketched.model))
    save_model(tmp_path / "model", saved.module, saved.preprocessor, saved.metrics)
    again = SavedModel(tmp_path / "model")
    numeric = torch.randint(0, 256, (20, saved.config.num_numeric), dtype=torch.uint8)
    codes = torch.zeros(20, len(saved.config.cardinalities), dtype=torch.int32)
    assert torch.equal(saved.module(numeric, codes), again.module(numeric, codes))
    for layer in sketched_layers(saved.module):
        assert layer.kept_weight is not None and layer.weight is layer.kept_weight
        kept, layer.kept_weight = layer.weight, None
        torch.testing.assert_close(layer.weight, kept)


@pytest.mark.parametrize("strategy", ["parameter-server", "allreduce", "ddp"])
def test_two_workers_equal_one(strategy: Any, prepared: Path, sketched: TrainResult, tmp_path: Path) -> None:
    found = train(prepared, tmp_path / "run", replace(SKETCHED, strategy=strategy, workers=2))
    for name, expected in weights(sketched).items():
        np.testing.assert_allclose(weights(found)[name], expected, atol=2e-4, err_msg=name)


def test_resumed_run_is_the_run_that_was_not_interrupted(prepared: Path, tmp_path: Path) -> None:
    longer = replace(SKETCHED, workers=2, epochs=4, resume="auto")
    train(prepared, tmp_path / "run", replace(longer, epochs=2))
    resumed = train(prepared, tmp_path / "run", longer)
    assert len(resumed.history) == 4 and same_bits(resumed, train(prepared, tmp_path / "whole", longer))


def test_continuing_keeps_the_random_matrices_of_the_model(
    prepared: Path, sketched: TrainResult, tmp_path: Path
) -> None:
    still = replace(SKETCHED, sketch_rank=0, hidden=None, init_from=sketched.model, seed=7, epochs=1)
    found = train(prepared, tmp_path / "still", replace(still, learning_rate=1e-12))
    assert found.average_precision == pytest.approx(sketched.average_precision, abs=1e-6)
    config = SavedModel(Path(found.model)).config
    assert (config.sketch_rank, config.sketch_seed) == (RANK, 4)
    longer = replace(still, resume="auto", epochs=3)
    train(prepared, tmp_path / "run", replace(longer, epochs=2))
    assert same_bits(train(prepared, tmp_path / "run", longer), train(prepared, tmp_path / "whole", longer))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "additive", "--sketch-rank", "2"], "sketch_rank: model additive has no first layer whose weights"),
        (["--sketch-rank", "2", "--init-from", "{model}"], "sketch_rank 2: the model of init_from has 3, which stays"),
        (["--sketch-rank", "1000", "--hidden", "8"], r"sketch_rank 1000: .* weights .*; set at most \d+, or leave it"),
        (["--sketch-rank", "5000"], "sketch_rank"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    options: list[str],
    message: str,
    prepared: Path,
    sketched: TrainResult,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
) -> None:
    words = [option.replace("{model}", sketched.model) for option in options]
    code = dkan("train", prepared, "--out", tmp_path / "run", *words, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)


def test_a_full_model_is_not_continued_with_a_sketch(trained: TrainResult, prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sketch_rank 3: the model of init_from has 0, which stays as it is"):
        train(prepared, tmp_path / "run", replace(SKETCHED, hidden=None, init_from=trained.model))


def test_columns_that_were_added_are_refused(source: Path, sketched: TrainResult, tmp_path: Path) -> None:
    table = pq.read_table(source)
    pq.write_table(table.append_column("more", table["mean_texture"]), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(like=sketched.model, extend=True))
    with pytest.raises(DataError, match=r"other columns or labels; .* sketched first layer \(sketch_rank 3\)"):
        train(tmp_path / "data", tmp_path / "run", replace(SKETCHED, hidden=None, init_from=sketched.model))


def test_plan_counts_what_is_exchanged(prepared: Path, sketched: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    monkeypatch.setattr(measuring, "EXCHANGE_REPEATS", 3)
    monkeypatch.setattr(measuring, "MEASURED_WORKERS", (1, 2))
    found = plan(prepared, SKETCHED)
    assert found.measured.parameters == SavedModel(Path(sketched.model)).parameters()


def test_reasons_add_up_and_curves_are_drawn(
    sketched: TrainResult, prepared: Path, source: Path, tmp_path: Path
) -> None:
    pq.write_table(pq.read_table(source).slice(0, 5), tmp_path / "few.parquet")
    rows = explain_rows(sketched.model, tmp_path / "few.parquet", tmp_path / "rows")
    scores = predict(sketched.model, pq.read_table(tmp_path / "few.parquet"))
    probabilities = np.array([row.probability for row in rows])
    np.testing.assert_allclose(probabilities, scores["label_probability"].to_numpy(), atol=1e-6)
    explain(sketched.model, prepared, tmp_path / "why", top=2, rows=200)
    assert "<svg" in (tmp_path / "why" / "explanation.html").read_text()
    assert "rank of the first layer" in evaluate(sketched.model, prepared, tmp_path / "eval", explain=False).report
    assert f"sketches of rank {RANK}" in (Path(sketched.model) / "README.md").read_text()
