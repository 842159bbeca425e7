"""The gradient of a step: in bfloat16 about that of float32, and in parts that of the whole."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from dkan_core import PrepareConfig, TrainConfig, prepare, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.data.loading.order import dropout_keys
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.kernels import use_kernel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import trained_parameters
from dkan_core.training.compute.gradient import accumulate_gradient
from dkan_core.training.compute.loss import masked_loss, total_weight
from dkan_core.training.roles.in_process import train_single
from dkan_core.training.setup.defaults import resolve
from tests.model.architectures import CONFIG, PLAIN, changed
from tests.settings import resolved

ROWS = 37
ALL_BINARY = changed(CONFIG, binary=(0, 1, 2), cardinalities=(), embedded=(), indicators=(), missing=())
architectures = pytest.mark.parametrize(
    "architecture",
    [CONFIG, PLAIN, ALL_BINARY, changed(CONFIG, hidden=()), changed(CONFIG, hidden=(6, 5), input_norm="layer")],
    ids=["auto", "plain", "all-binary", "no-hidden", "deep"],
)
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def model_of(architecture: ModelConfig, device: str = "cpu") -> TabularFastKAN:
    """Return a model none of whose weights is 0, so that every gradient is of interest."""
    torch.manual_seed(0)
    model = TabularFastKAN(architecture)
    for parameter in trained_parameters(model):
        torch.nn.init.normal_(parameter, std=0.3)
    return model.to(device)


def batch_of(architecture: ModelConfig, *, rows: int = ROWS, weighted: bool = True) -> dict[str, Tensor]:
    """Return rows of which many labels are not measured, all of them in the first rows."""
    torch.manual_seed(1)
    labels = torch.randint(0, 2, (rows, 2), dtype=torch.uint8)
    labels[torch.rand(rows, 2) < 0.4] = 255
    labels[: rows // 5] = 255
    batch = {"labels": labels, "numeric": torch.randint(0, 256, (rows, 3), dtype=torch.uint8)}
    batch["dropout_key"] = torch.from_numpy(dropout_keys(0, 0, rows))
    if architecture.cardinalities:
        codes = [torch.randint(0, size, (rows,)) for size in architecture.cardinalities]
        batch["categorical"] = torch.stack(codes, dim=1).int()
    return {**batch, "weight": torch.rand(rows) * 3} if weighted else batch


def gradient(model: TabularFastKAN, batch: dict[str, Tensor], **settings: Any) -> tuple[Tensor, float, float]:
    """Return gradient, loss and weight of a batch."""
    batch = {name: tensor.to(model.bias.device) for name, tensor in batch.items()}
    for parameter in trained_parameters(model):
        if parameter.grad is not None:
            parameter.grad.zero_()
    loss, weight = accumulate_gradient(model, batch, resolved(labels=2, **settings))
    gradients = [parameter.grad.flatten() for parameter in trained_parameters(model) if parameter.grad is not None]
    return torch.cat(gradients), loss, weight


@devices
@architectures
def test_bfloat16_gives_about_the_gradient_of_float32(architecture: ModelConfig, device: str) -> None:
    model, batch = model_of(architecture, device), batch_of(architecture)
    expected, expected_loss, expected_weight = gradient(model, batch)
    found, loss, weight = gradient(model, batch, precision="bf16")
    assert found.dtype == torch.float32 and found.isfinite().all() and not torch.equal(found, expected)
    assert (found - expected).norm() < 0.03 * expected.norm()
    assert loss == pytest.approx(expected_loss, rel=0.02) and weight == expected_weight


def test_bfloat16_learns_as_well(prepared: Path) -> None:
    manifest = read_manifest(prepared)
    found = {}
    for precision in ("fp32", "bf16"):
        config = TrainConfig(precision=precision, epochs=5, hidden=(8,), device="cpu", batch_size=64)
        with open_split(prepared, manifest, "train") as train, open_split(prepared, manifest, "valid") as valid:
            result = train_single(train, valid, manifest, resolve(config, train.rows))
        assert all(parameter.dtype == torch.float32 for parameter in result.model.parameters())
        found[precision] = result.metrics["average_precision"]
    assert found["fp32"] > 0.9 and found["bf16"] == pytest.approx(found["fp32"], abs=0.02)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [2, 5, ROWS, 1000])
def test_parts_add_up_to_the_whole(parts: int, weighted: bool) -> None:
    architecture = changed(CONFIG, dropout=0.3, binary_dropout=0.3)
    model, batch = model_of(architecture), batch_of(architecture, weighted=weighted)
    settings: dict[str, Any] = {"pos_weight": 3.0, "label_weights": (1.0, 0.5)}
    expected, *expected_scalars = gradient(model, batch, **settings)
    found, *scalars = gradient(model, batch, accumulate=parts, **settings)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert scalars == pytest.approx(expected_scalars, rel=1e-5)


def test_one_part_is_one_backward_of_the_mean_loss_to_the_bit() -> None:
    model, batch = model_of(CONFIG), batch_of(CONFIG)
    config = resolved(labels=2)
    weight = total_weight(batch, config)
    loss = masked_loss(model.member_logits(batch["numeric"], batch["categorical"]), batch, config, weight)
    expected = torch.autograd.grad(loss, trained_parameters(model))
    found, *scalars = gradient(model, batch, accumulate=1)
    assert torch.equal(found, torch.cat([part.flatten() for part in expected]))
    assert scalars == [loss.item(), weight.item()]


@pytest.mark.parametrize("rows", [0, 6])
def test_rows_without_a_measured_label_have_no_gradient_in_any_parts(rows: int) -> None:
    model, batch = model_of(CONFIG), batch_of(CONFIG, rows=rows)
    gradient(model, batch_of(CONFIG))
    found, loss, weight = gradient(
        model, {**batch, "labels": torch.full((rows, 2), 255, dtype=torch.uint8)}, accumulate=4
    )
    assert not found.any() and loss == 0 and weight == 0


def test_parts_hold_fewer_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(CONFIG)
    # By autograd; tests/model/test_training_step.py has the parts that a single call computes.
    use_kernel(model, "recompute")
    inner = model.member_logits
    seen: list[int] = []

    def counted(**inputs: Tensor) -> Tensor:
        seen.append(len(inputs["numeric"]))
        return inner(**inputs)

    monkeypatch.setattr(model, "member_logits", counted)
    gradient(model, batch_of(CONFIG), accumulate=4)
    assert max(seen) == 10 and sum(seen) == ROWS


@pytest.mark.parametrize("kernel", ["auto", "recompute"])
def test_weights_of_labels_may_be_whole_numbers(kernel: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=600) for name in ("x", "z")}
    labels = {f"late_{name}": (columns[name] > 0).astype(np.int8) for name in columns}
    pq.write_table(pa.table({**columns, **labels}), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=tuple(labels)))
    settings = TrainConfig(epochs=2, hidden=(8,), workers=1, device="cpu", batch_size=64, blend=False, kernel=kernel)
    found: list[Any] = []
    for weights in ((1, 3), (1.0, 3.0)):
        config = replace(settings, label_weights=weights)
        found.append(train(tmp_path / "data", tmp_path / f"run-{len(found)}", config).history)
    assert found[0][-1]["average_precision"] == found[1][-1]["average_precision"] > 0.9
