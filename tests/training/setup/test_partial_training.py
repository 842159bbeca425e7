"""Training that starts from a model and changes a part of it, or with its optimizer's moments."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dkan_core import ConfigError, TrainConfig, TrainResult, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.model.saved_model import SavedModel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica, parameter_count
from dkan_core.training.setup.initial_model import take_initial
from dkan_core.training.setup.parameter_groups import code_rate, learning_rate_factors, part_names
from dkan_core.training.state.adamw import FlatAdamW, ParameterGroups, initial_state
from dkan_core.training.state.checkpoint_store import load_checkpoint
from tests.command import check, dkan
from tests.model.architectures import CONFIG as ARCHITECTURE

CONFIG = TrainConfig(blend=False, epochs=1, device="cpu", batch_size=64, learning_rate=0.02, weight_decay=0.5)


def tensors(model: str | Path) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in SavedModel(Path(model)).module.named_parameters()}


@pytest.mark.parametrize(
    ("strategy", "workers", "options"),
    [
        ("parameter-server", 2, {"clip_norm": 0.1}),
        ("parameter-server", 2, {"mode": "average"}),
        ("parameter-server", 2, {"mode": "async"}),
        ("local-sgd", 2, {"clip_norm": 0.1}),
        ("single", 1, {"ema_decay": 0.9}),
    ],
)
def test_frozen_parts_stay_to_the_bit_and_the_others_learn(
    strategy: Any, workers: int, options: dict[str, Any], trained: TrainResult, prepared: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, init_from=trained.model, strategy=strategy, workers=workers, **options)
    result = train(prepared, tmp_path / "run", replace(config, freeze=("encoder", "network.first")))
    before, after = tensors(trained.model), tensors(result.model)
    for name, tensor in before.items():
        frozen = name.startswith(("encoder", "network.first")) or name.endswith("rbf.grid")
        assert torch.equal(after[name], tensor) == frozen, name


def test_a_run_with_frozen_parts_resumes_to_the_same_bits(
    trained: TrainResult, prepared: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    parts: dict[str, Any] = {"freeze": ("encoder",), "lr_multipliers": ("network.rest=0.1",), "init_optimizer": "kept"}
    config = replace(CONFIG, epochs=3, workers=1, init_from=trained.model, **parts)
    whole = train(prepared, tmp_path / "whole", config)
    train(prepared, tmp_path / "run", replace(config, max_seconds=1e-3))
    resumed = train(prepared, tmp_path / "run", replace(config, resume="auto"))
    assert resumed.history[-1]["step"] == whole.history[-1]["step"]
    ends = [load_checkpoint(str(each.checkpoint)) for each in (whole, resumed)]
    assert ends[0] and ends[1] and np.array_equal(ends[0][1].state_KP, ends[1][1].state_KP)
    options = ["--no-blend", "--epochs", "3", "--batch-size", "64", "--learning-rate", "0.02", "--weight-decay", "0.5"]
    places = ["--workers", "1", "--device", "cpu", "--init-from", trained.model, "--resume", "auto"]
    code = dkan("train", prepared, "--out", tmp_path / "run", *options, *places, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"was trained with init_optimizer kept, not fresh")


def test_a_factor_of_the_rate_is_that_of_the_steps() -> None:
    """Each stretch is stepped as if it were alone with its own rate, and decays by it."""
    rng = np.random.default_rng(0)
    values_P, gradient_P = rng.standard_normal((2, 40_000), np.float32)
    decayed = ParameterGroups(((100, 30_000, 0.5),))
    whole, parts = initial_state(values_P.copy()), initial_state(values_P.copy())
    optimizer = FlatAdamW(ParameterGroups(((100, 20_000, 0.5), (20_000, 30_000, 0.5)), ((20_000, 40_000, 0.25),)))
    for count in (1, 2, 3):
        assert optimizer.step(parts, parts, gradient_P, lr=0.1, count=count)
        assert FlatAdamW(decayed).step(whole, whole, gradient_P, lr=0.1, count=count)
    assert np.array_equal(parts[0, :20_000], whole[0, :20_000])
    slow = initial_state(values_P[20_000:].copy())
    for count in (1, 2, 3):
        FlatAdamW(ParameterGroups(((0, 10_000, 0.5),))).step(slow, slow, gradient_P[20_000:], lr=0.025, count=count)
    assert np.array_equal(parts[0, 20_000:], slow[0])
    # All of the gradient counts, whose norm is known; beside a frozen part, what is learned from.
    assert optimizer.trained_norm(gradient_P, 1.5) == 1.5
    frozen = FlatAdamW(ParameterGroups(rates=((0, 10, 0.0),)))
    assert frozen.trained_norm(gradient_P, 1.5) == pytest.approx(np.linalg.norm(gradient_P[10:]), rel=1e-5)


def test_parts_are_those_of_the_model(trained: TrainResult) -> None:
    model = SavedModel(Path(trained.model)).module
    config = replace(CONFIG, init_from="m", freeze=("encoder",), lr_multipliers=("encoder.indicators=0.5",))
    found = {factor for _, _, factor in learning_rate_factors(model, config, rows=10**6)}
    assert found == {0.0, 0.5}  # the longer name counts
    named = [name for name, each in model.named_parameters() if each.requires_grad]
    assert {"encoder", "network", "network.first", "network.rest", "bias"} <= {*part_names(named)}


def test_embeddings_whose_codes_have_few_rows_learn_slowly() -> None:
    model = TabularFastKAN(ARCHITECTURE)
    of_parts = replace(CONFIG, lr_multipliers=("network=0.5", "encoder.embeddings=0.5"))
    for config, factor in ((CONFIG, 1.0), (of_parts, 0.5)):
        rates = torch.ones(parameter_count(model))
        for start, stop, rate in learning_rate_factors(model, config, rows=540):
            rates[start:stop] = rate
        Replica(model, torch.device("cpu")).load(rates.numpy())
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                slow = code_rate(540 / len(parameter)) if ".embeddings." in name else 1.0
                named = factor if name.startswith(("network", "encoder.embeddings")) else 1.0
                assert torch.equal(parameter, torch.full_like(parameter, slow * named)), name
        assert len(model.encoder.embeddings) > 0
    assert learning_rate_factors(model, CONFIG, rows=10**6) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--freeze", "encoder"], r"freeze encoder: there is no model to start from; set init_from"),
        (["--init-optimizer", "kept"], r"init_optimizer kept: there is no model to start from"),
        (
            ["--init-from", "{model}", "--freeze", "enc"],
            r"freeze enc: the model has no such part; it has bias, encoder, ",
        ),
        (
            ["--init-from", "{model}", "--freeze", "encoder", "--freeze", "network", "--freeze", "bias"],
            r"freeze encoder, network, bias: nothing of the model is left to train",
        ),
        (["--lr-multipliers", "encoder"], r"lr_multipliers must be PART=FACTOR .* got 'encoder'"),
        (["--lr-multipliers", "encoder=-1"], r"lr_multipliers must be PART=FACTOR .* got 'encoder=-1'"),
        (["--lr-multipliers", "a=1", "--lr-multipliers", "a=2"], r"lr_multipliers a=2: a has two factors"),
        (["--init-from", "{copy}", "--init-optimizer", "kept"], r"there is no checkpoint at .*best.safetensors"),
        (["--init-from", "{other}", "--init-optimizer", "kept"], r"best.safetensors belongs to another model than"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str],
    message: str,
    trained: TrainResult,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
) -> None:
    shutil.copytree(trained.model, tmp_path / "copy")
    if "{other}" in options:
        other = train(prepared, tmp_path / "other", replace(CONFIG, init_from=trained.model, workers=1))
        shutil.copytree(Path(trained.model).parent / "checkpoints", tmp_path / "other/checkpoints", dirs_exist_ok=True)
        assert other.checkpoint
    places = {"{model}": trained.model, "{copy}": tmp_path / "copy", "{other}": tmp_path / "other"}
    chosen = [str(places.get(option, option)) for option in options]
    code = dkan("train", prepared, "--out", tmp_path / "run", "--device", "cpu", *chosen, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "run/model").exists()


def test_kept_moments_are_those_of_the_model_without_bias(trained: TrainResult, prepared: Path) -> None:
    run = Path(trained.model).parent
    config = replace(CONFIG, init_from=str(run), init_optimizer="kept")
    _, initial = take_initial(config, read_manifest(prepared), prepared, "")
    found = load_checkpoint(str(run / "checkpoints/best.safetensors"))
    assert initial is not None and initial.moments_2P is not None and found is not None
    checkpoint = found[1]
    first, second = checkpoint.state_KP[1:3]
    step = checkpoint.ledger.step
    np.testing.assert_allclose(initial.moments_2P[0], first / (1 - 0.9**step), rtol=1e-5)
    np.testing.assert_allclose(initial.moments_2P[1], second / (1 - 0.999**step), rtol=1e-5)


def test_the_model_says_what_it_started_from(trained: TrainResult, prepared: Path, tmp_path: Path) -> None:
    result = train(prepared, tmp_path / "run", replace(CONFIG, workers=1, init_from=trained.model))
    digest = result.metrics["training"]["init_from"]
    assert SavedModel(Path(result.model)).metrics["init_from"] == digest
    assert digest.removeprefix("sha256:") in (Path(result.model) / "README.md").read_text()
    assert "init_from" not in SavedModel(Path(trained.model)).metrics


def test_no_part_of_an_additive_model_is_frozen(prepared: Path, tmp_path: Path) -> None:
    config = TrainConfig(model="additive", pairs="0", members=2, epochs=1, device="cpu")
    first = train(prepared, tmp_path / "first", config)
    with pytest.raises(ConfigError, match="freeze: not supported with model additive"):
        train(prepared, tmp_path / "again", replace(config, init_from=first.model, freeze=("table",)))
