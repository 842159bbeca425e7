"""The fused kernels compute the formula, in Triton's interpreter and on a GPU; where they do not, they are not used."""

import json
import logging
import subprocess
import sys

import pytest
import torch

from dkan_core.model.kernels import choice, verified
from dkan_core.model.kernels.choice import Operands
from tests.model.fused_in_interpreter import BYTE_SHAPES, HIDDEN_SHAPES, SHAPES

HALF = ["half precision", "bytes, half precision"]
A100 = ["tiles of an A100", "bytes, tiles of an A100"]
ADAMW = ["adamw", "adamw, rates by parameter"]
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[float]]:
    """Return the relative errors by shape: of the result, and of the gradients of inputs and weights."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.fused_in_interpreter"], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    errors: dict[str, list[float]] = json.loads(done.stdout)
    return errors


@pytest.mark.parametrize("name", [*SHAPES, *BYTE_SHAPES, *HIDDEN_SHAPES, *HALF, *A100, *ADAMW])
def test_result_and_gradients_equal_the_formula(interpreted: dict[str, list[float]], name: str) -> None:
    tolerance = verified.TOLERANCES[torch.float16 if name in HALF else torch.float32]
    assert len(interpreted[name]) == (4 if "bytes" in name else 7 if "hidden" in name else 3)
    assert max(interpreted[name]) < tolerance


def test_places_may_need_more_than_32_bits(interpreted: dict[str, list[float]]) -> None:
    assert max(interpreted["far in memory"]) < verified.TOLERANCES[torch.float32]


def test_rows_and_keys_are_the_same(interpreted: dict[str, list[float]]) -> None:
    assert interpreted["lookup of rows"] == [0, 0, 0, 0]


@pytest.mark.parametrize("name", HALF)
def test_half_precision_rounds(interpreted: dict[str, list[float]], name: str) -> None:
    assert min(interpreted[name][:3]) > verified.TOLERANCES[torch.float32]


def operands(shape: tuple[int, ...], rows: int, product: torch.dtype, device: torch.device) -> Operands:
    """Return rows and weights, for networks side by side, inputs, outputs and centers."""
    *networks, inputs, outputs, centers = shape
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (
        torch.randn(*networks, *size, generator=generator, device=device, requires_grad=True)
        for size in ((rows, inputs), (outputs, inputs * centers))
    )
    return Operands((x,), (weight,), (torch.linspace(-2, 2, centers, device=device), 0.6), product)


def test_kernels_that_do_not_run_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """As here, on a device that they cannot be compiled for."""
    cpu = torch.device("cpu")
    with caplog.at_level(logging.WARNING):
        assert not choice.is_right("fused", choice.RADIAL_LINEAR, operands((3, 2, 8), 10, torch.float32, cpu))
    assert "does not run on cpu" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        subprocess.CalledProcessError(1, ["gcc", "__triton_launcher.c"]),
        PermissionError(13, "Permission denied", "/.triton"),
        FileNotFoundError(2, "No such file or directory", "/sbin/ldconfig"),
    ],
    ids=["compiler", "cache", "linker"],
)
def test_kernels_that_cannot_be_built_are_replaced(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Triton passes on what the C compiler of its launchers and the folder of its cache fail with."""
    pytest.importorskip("triton")

    def build() -> list[float]:
        raise error

    with caplog.at_level(logging.WARNING):
        assert not verified.is_right("a kernel", torch.device("cpu"), build, 0.0)
    assert f"a kernel does not run on cpu ({error}); it is not used" in caplog.text


@pytest.mark.parametrize("errors", [[1e-7, float("nan"), 1e-7], [1e-7, 1e-7, 1e-2]])
def test_kernels_that_are_wrong_are_replaced(errors: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not verified.is_right("a kernel", torch.device("cpu"), lambda: errors, 1e-5)
    assert f"differs by 1.0e-07, {errors[1]:.1e}" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("product", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 2), (40, 70, 8), (2, 3, 5), (3, 200, 8), (3, 20, 1, 8), (768, 64, 8)])
def test_kernels_are_right_on_this_gpu(shape: tuple[int, ...], product: torch.dtype) -> None:
    """Of several tiles of rows the last one is not full."""
    assert choice.is_right("fused", choice.RADIAL_LINEAR, operands(shape, 300, product, CUDA))


@pytest.mark.gpu
def test_same_inputs_give_the_same_bits() -> None:
    given = operands((30, 64, 8), 5000, torch.float32, CUDA)
    first, second = (given.passes(choice.compute_fused) for _ in range(2))
    assert all(map(torch.equal, first, second))
