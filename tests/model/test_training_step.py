"""A step in one call of the native extension is what autograd computes, whatever the model and the loss."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dkan_core.config.train import Kernel
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.kernels import native_step, verified_native
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.model.training_step import PreparedStep
from dkan_core.training.compute import gradient as gradient_module
from dkan_core.training.compute.flat_model import Replica, flatten
from tests.model.architectures import CONFIG, PLAIN, changed
from tests.native import needs_native
from tests.settings import resolved
from tests.training.compute.test_gradient import ALL_BINARY, batch_of, model_of

pytestmark = needs_native

DROPPING = changed(CONFIG, dropout=0.3, binary_dropout=0.3)
KNOWN = {
    "members": DROPPING,
    "one network": changed(PLAIN, dropout=0.3),
    "eight centers": changed(DROPPING, num_centers=8, binary=()),
    "codes alone": changed(DROPPING, num_numeric=0, binary=(), embedded=(0, 1)),
}
LEFT_TO_AUTOGRAD = {
    "deep": changed(CONFIG, hidden=(6, 5)),
    "no hidden layer": changed(CONFIG, hidden=()),
    "normalized inputs": changed(CONFIG, input_norm="layer"),
    "no inputs": ALL_BINARY,
}
KERNELS: tuple[Kernel, ...] = ("auto", "eager")


def gradient(
    architecture: ModelConfig, batch: dict[str, Tensor], kernel: Kernel = "auto", **settings: Any
) -> tuple[Tensor, float, float]:
    """Return gradient, loss and weight of a batch, as a worker computes them."""
    return gradient_of(model_of(architecture), batch, kernel, **settings)


def gradient_of(
    model: TabularFastKAN, batch: dict[str, Tensor], kernel: Kernel = "auto", **settings: Any
) -> tuple[Tensor, float, float]:
    values_P = flatten(model).numpy()
    replica = Replica(model.train(), torch.device("cpu"), kernel)
    replica.load(values_P)
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    loss, weight, _ = replica.compute_gradient(arrays, resolved(labels=2, **settings))
    return replica.gradients_P, loss, weight


def rows_of(architecture: ModelConfig, rows: int, **settings: Any) -> dict[str, Tensor]:
    batch = batch_of(architecture, rows=rows, **settings)
    return batch if architecture.num_numeric else {name: batch[name] for name in batch if name != "numeric"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each part of a batch was computed in one call."""
    found: list[bool] = []

    def counted(function: Callable[..., Any], is_one_call: bool) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found.append(is_one_call)
            return function(*arguments)

        return call

    monkeypatch.setattr(PreparedStep, "add_gradient", counted(PreparedStep.add_gradient, True))
    monkeypatch.setattr(gradient_module, "add_part_gradient", counted(gradient_module.add_part_gradient, False))
    return found


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(
    "shape",
    # Of the last one, gradients of the members' biases nearly cancel.
    [(1, 6, 1, 2), (2, 128, 1, 8), (3, 17, 16, 8), (1, 33, 3, 32), (4, 16, 2, 5), (4, 512, 1, 8)],
)
def test_step_equals_the_formula_in_float64(shape: tuple[int, int, int, int]) -> None:
    assert verified_native.step_is_right.__wrapped__(*shape)
    assert verified_native.step_is_right.__wrapped__(*shape, bf16=True)


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (195, 3), (401, 150)])
def test_scores_are_multiplied_in_bfloat16_where_the_processor_can(
    variant: str, rows: int, columns: int, calls: list[bool]
) -> None:
    architecture = changed(DROPPING, num_numeric=columns, binary=(), num_centers=8, hidden=(70,))
    batch = rows_of(architecture, rows)
    batch["numeric"] = torch.randn(rows, columns)
    full, half = (gradient(architecture, batch, precision=each)[0] for each in ("fp32", "bf16"))
    exact = gradient(architecture, batch, "eager")[0]
    assert calls == [True, True, False]
    assert torch.equal(full, half) == ("bf16" not in variant)
    assert (half - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize(("rows", "columns", "centers"), [(150, 3, 8), (195, 12, 5), (401, 150, 8), (1000, 70, 8)])
def test_many_bytes_are_multiplied_by_a_matrix_unit(variant: str, rows: int, columns: int, centers: int) -> None:
    architecture = changed(DROPPING, num_numeric=columns, binary=(2,), num_centers=centers, hidden=(70,))
    batch = rows_of(architecture, rows)
    batch["numeric"] = torch.randint(256, (rows, columns)).byte()
    batch["numeric"][:, 1] %= 5
    full, half = (gradient(architecture, batch, precision=each)[0] for each in ("fp32", "bf16"))
    exact = gradient(architecture, batch, "eager")[0]
    assert torch.equal(full, half) == (variant != "amx_bf16" or columns == 3)
    assert (full - exact).norm() < 2e-5 * exact.norm()
    assert (half - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulate": 3}, {"pos_weight": 3.0, "label_weights": (2.0, 0.5)}],
    ids=["plain", "in parts", "weighted"],
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("architecture", KNOWN.values(), ids=KNOWN.keys())
def test_step_is_what_autograd_computes(
    architecture: ModelConfig, weighted: bool, settings: dict[str, Any], calls: list[bool]
) -> None:
    batch = rows_of(architecture, 130, weighted=weighted)
    found, loss, weight = gradient(architecture, batch, **settings)
    assert calls == [True] * settings.get("accumulate", 1)
    expected, right, same_weight = gradient(architecture, batch, "eager", **settings)
    assert not all(calls)
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert loss == pytest.approx(right, rel=1e-5) and weight == same_weight


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("rows", [5, 60, 700, 5000])
def test_values_that_occur_together_are_taken_together(rows: int, calls: list[bool]) -> None:
    """Few rows, of which each has values of its own; columns that follow from others; and more rows than are sorted."""
    groups = ((0,), (1,), (0, 1), (2,))
    architecture = changed(
        DROPPING, binary=(), cardinalities=(5, 4, 900), embedded=(0, 2), indicators=groups, hidden=(100,)
    )
    batch = rows_of(architecture, rows)
    first, second, many = batch["categorical"].unbind(1)
    batch["categorical"] = torch.stack([first, first // 2 + second % 2, many], dim=1)
    batch["numeric"][:, 0] = 50 * first
    batch["numeric"][:, 1] = batch["numeric"][:, 1] // 128
    found, loss, _ = gradient(architecture, batch)
    expected, right, _ = gradient(architecture, batch, "eager")
    assert calls == [True, False]
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert loss == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_scores_need_not_be_bytes(dtype: torch.dtype, calls: list[bool]) -> None:
    batch = rows_of(DROPPING, 90)
    batch["numeric"] = torch.randn(90, 3).to(dtype)
    found, expected = (gradient(DROPPING, batch, kernel)[0] for kernel in KERNELS)
    assert calls == [True, False]
    assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("architecture", LEFT_TO_AUTOGRAD.values(), ids=LEFT_TO_AUTOGRAD.keys())
def test_other_models_are_left_to_autograd(architecture: ModelConfig, calls: list[bool]) -> None:
    batch = rows_of(architecture, 90)
    found, expected = (gradient(architecture, batch, kernel)[0] for kernel in KERNELS)
    assert calls == [False, False]
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_rows_without_a_measured_label_have_no_gradient() -> None:
    batch = rows_of(DROPPING, 20)
    batch["labels"].fill_(255)
    found, loss, weight = gradient(DROPPING, batch)
    assert loss == weight == 0 and not found.any()


def test_no_number_shows_in_the_loss() -> None:
    model = model_of(DROPPING)
    with torch.no_grad():
        model.bias[0] = float("nan")
    found, loss, _ = gradient_of(model, rows_of(DROPPING, 20))
    assert loss != loss and found.isnan().any()


@pytest.mark.parametrize("code", [-1, 5])
def test_a_code_outside_its_table_is_an_error(code: int) -> None:
    batch = rows_of(DROPPING, 20)
    batch["categorical"][7, 0] = code
    with pytest.raises(IndexError, match="row 7 has a code that is no row of its table"):
        gradient(DROPPING, batch)


def test_memory_of_a_step_is_that_of_inputs_and_outputs() -> None:
    """The basis of a row would be nine times its inputs, and the hidden layer's nine times the outputs."""
    command = [sys.executable, "-m", "tests.model.memory_of_steps", "20000", "60000"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    # 1.1 was measured: the outputs, and for each input the place of its value in a table.
    assert found["bytes of a row"] < 2 * 4 * found["inputs and outputs"]


@pytest.mark.usefixtures("variant")
def test_bits_depend_neither_on_threads_nor_on_the_run(threads: Callable[[int], None]) -> None:
    architecture = changed(DROPPING, hidden=(100,))
    batch, results = rows_of(architecture, 3000), []
    for count in (1, 2, 9, 2):
        threads(count)
        found, loss, _ = gradient(architecture, batch)
        results.append(torch.cat([found, torch.tensor([loss])]))
    assert all(torch.equal(one, other) for one, other in pairwise(results))


def test_a_step_that_is_wrong_is_replaced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    right, batch = native_step.training_step, rows_of(DROPPING, 50)
    monkeypatch.setattr(verified_native, "training_step", lambda *each, **named: 1.001 * right(*each, **named))
    verified_native.step_is_right.cache_clear()
    with caplog.at_level(logging.WARNING):
        found, *_ = gradient(DROPPING, batch)
    verified_native.step_is_right.cache_clear()
    expected, *_ = gradient(DROPPING, batch, "eager")
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert "the native step differs by 1.0e-03" in caplog.text


def test_torch_knows_what_a_step_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    right = torch.ops.dkan.training_step.default

    def kept(*arguments: Any) -> Tensor:
        given[:] = arguments
        loss: Tensor = right(*arguments)
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(native_step, "operation", kept)
        verified_native.step_is_right.__wrapped__(2, 6, 2, 3)
    leaves = [_without_gradient(each) for each in given]
    checks = torch.library.opcheck(right, tuple(leaves))
    assert set(checks.values()) == {"SUCCESS"}


def _without_gradient(argument: Any) -> Any:
    """Return it as it is within a step, which autograd does not see."""
    if isinstance(argument, list | tuple):
        return [_without_gradient(each) for each in argument]
    return argument.detach() if isinstance(argument, Tensor) else argument
