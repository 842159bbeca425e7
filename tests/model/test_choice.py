"""The fastest kernel that is right is taken, here of candidates on the CPU; a wrong one never, nor one that fails."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dkan_core.model.kernels import choice, compilation, eager, gpu_layers
from dkan_core.model.kernels.choice import Compute, Name, Operands, RadialLinear

WIDTH = 0.6


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    """Where choices of this test are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choice, "_chosen", {})
    caplog.set_level(logging.DEBUG, logger="dkan_core.model.kernels")
    return tmp_path / "dkan" / "kernels"


def operands(rows: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 3, generator=generator).requires_grad_()
    weight = torch.randn(4, 24, generator=generator).requires_grad_()
    return x, weight, torch.linspace(-2, 2, 8)


def best(rows: int = 50) -> Name | None:
    x, weight, centers = operands(rows)
    return choice.name_of_best(choice.RADIAL_LINEAR, (3, 4, 8), (x,), (weight,), (centers, WIDTH))


def wrong_by(factor: float) -> RadialLinear:
    def compute(x: Tensor, weight: Tensor, centers: Tensor, width: float) -> Tensor:
        return eager.radial_linear(x, weight, centers, width) * factor

    return compute


def failing(*_: object) -> Tensor:
    raise RuntimeError("no such instruction\nand a long report")


def wrong_gradient(x: Tensor, weight: Tensor, centers: Tensor, width: float) -> Tensor:
    out = eager.radial_linear(x, weight, centers, width)
    return out + 0 * out if not out.requires_grad else out.detach() + 1.001 * (out - out.detach())


def set_candidates(patch: pytest.MonkeyPatch, candidates: dict[Name, tuple[float, RadialLinear]]) -> None:
    """Let there be candidates that take so many milliseconds."""
    computes: dict[Name, Compute] = {name: compute for name, (_, compute) in candidates.items()}
    patch.setattr(choice, "RADIAL_LINEAR", replace(choice.RADIAL_LINEAR, candidates=computes))
    patch.setattr(choice, "pass_seconds", lambda name, *_: candidates[name][0] / 1e3)


RIGHT = eager.radial_linear


@pytest.mark.parametrize(
    ("candidates", "expected", "said"),
    [
        ({"fused": (0.3, RIGHT), "recompute": (0.4, RIGHT)}, "fused", "64 rows, 3 x 4 x 8, torch.float32, with grad"),
        ({"fused": (0.3, RIGHT), "recompute": (0.1, RIGHT)}, "recompute", "fused 0.3 ms, recompute 0.1 ms"),
        (
            {"fused": (0.1, wrong_by(1.001)), "recompute": (0.2, RIGHT)},
            "recompute",
            "radial_linear differs by 1.0e-03",
        ),
        (
            {"fused": (0.1, wrong_by(torch.nan)), "recompute": (0.2, RIGHT)},
            "recompute",
            "radial_linear differs by nan",
        ),
        ({"fused": (0.1, wrong_gradient), "recompute": (0.2, RIGHT)}, "recompute", "by 0.0e+00, 1.0e-03, 1.0e-03"),
        ({"fused": (0.1, failing), "recompute": (0.2, RIGHT)}, "recompute", "run on cpu (no such instruction)"),
        ({"fused": (0.19, RIGHT), "recompute": (0.1, RIGHT)}, "fused", "with gradients: fused 0.19 ms"),
        ({"recompute": (3.0, RIGHT), "compile": (2.0, RIGHT)}, "compile", "recompute 3 ms, compile 2 ms"),
        ({"recompute": (0.9, RIGHT), "compile": (0.0, failing)}, "recompute", "recompute 0.9 ms"),
        (
            {"fused": (0.1, failing), "recompute": (0.2, failing)},
            "recompute",
            "recompute of radial_linear does not",
        ),
    ],
)
def test_fastest_that_is_right_is_taken(
    candidates: dict[Name, tuple[float, RadialLinear]],
    expected: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_candidates(monkeypatch, candidates)
    assert best() == expected
    assert said in caplog.text
    assert "compile does not run" not in caplog.text, "nothing is compiled for what takes no time"


def test_what_a_pass_takes_is_compiled_before_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled_by = []

    def slow(*arguments: Any) -> Tensor:
        compiled_by.append(threading.current_thread())
        return eager.radial_linear(*arguments)

    set_candidates(monkeypatch, {"fused": (0.1, slow), "recompute": (0.2, failing)})
    with ThreadPoolExecutor(2) as pool, compilation.side_by_side(pool):
        assert best() is None and best() is None and best(rows=200) is None
        assert not compiled_by
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(compilation.is_collecting).result(), "it may be computing something of use"
    assert len(compiled_by) == 2 and threading.main_thread() not in compiled_by
    set_candidates(monkeypatch, {"fused": (0.1, failing), "recompute": (0.2, RIGHT)})
    with ThreadPoolExecutor(2) as pool, compilation.side_by_side(pool):
        assert best() is None
    assert not caplog.text, "it is checked, and said to fail, where it is used"
    assert best() == "recompute" and "no such instruction" in caplog.text
    with ThreadPoolExecutor(2) as pool, compilation.side_by_side(pool):
        assert best() == "recompute"


@pytest.mark.parametrize(
    ("error", "warning"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "kernel fused of radial_linear runs out of memory on cpu"),
        (RuntimeError("no such size"), "kernel fused of radial_linear fails on all rows of a batch (no such size)"),
    ],
)
def test_candidate_that_fails_only_on_all_rows_is_not_taken(
    error: Exception, warning: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def greedy(x: Tensor, weight: Tensor, centers: Tensor, width: float) -> Tensor:
        if len(x) > 40:
            raise error
        return RIGHT(x, weight, centers, width)

    measure = choice.pass_seconds
    set_candidates(monkeypatch, {"fused": (0, greedy), "recompute": (0, RIGHT)})
    monkeypatch.setattr(choice, "pass_seconds", measure)
    monkeypatch.setattr(choice, "CHECKED_ROWS", 30)
    assert best() == "recompute"
    assert warning in caplog.text


def test_choice_is_kept_for_other_processes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_candidates(monkeypatch, {"fused": (2, RIGHT), "recompute": (1, RIGHT)})
    assert (best(), best(rows=40), best(rows=1), best(rows=0)) == ("recompute",) * 4
    assert len([*folder.iterdir()]) == 3, "40 rows are of the kind of 50; that no rows are right says nothing of one"
    # Another process, in which the clock says otherwise.
    choice._chosen.clear()
    set_candidates(monkeypatch, {"fused": (1, RIGHT), "recompute": (2, RIGHT)})
    assert best() == "recompute"
    assert "the fastest of an earlier run" in caplog.text
    # One that has measured at the same time, and is the second to keep what it has found.
    choice._chosen.clear()
    read = choice._read
    answers = iter([lambda path: None, read])
    monkeypatch.setattr(choice, "_read", lambda path: next(answers)(path))
    assert best() == "recompute"
    monkeypatch.setattr(choice, "_read", read)
    # And one in which what was kept is wrong.
    choice._chosen.clear()
    set_candidates(monkeypatch, {"fused": (1, RIGHT), "recompute": (2, wrong_by(2.0))})
    assert best() == "fused"


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"kernel": "quick", "milliseconds": {}}'])
def test_without_a_file_the_clock_does_not_decide(
    content: bytes | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes would take different ones: so where nothing can be kept, and where a file is damaged."""
    set_candidates(monkeypatch, {"fused": (2, RIGHT), "recompute": (1, RIGHT)})
    if content is None:
        folder.parent.write_text("no folder")
    else:
        best()
        (path,) = folder.iterdir()
        path.write_bytes(content)
        choice._chosen.clear()
    assert best() == "fused"


def test_time_is_that_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(x: Tensor, weight: Tensor, centers: Tensor, width: float) -> Tensor:
        time.sleep(0.02)
        return RIGHT(x, weight, centers, width)

    x, weight, centers = operands()
    given = Operands((x,), (weight,), (centers, WIDTH), torch.float32)
    assert choice.pass_seconds("fused", replace(choice.RADIAL_LINEAR, candidates={"fused": slow}), given) > 0.02


def test_scoring_chooses_too() -> None:
    """In inference mode, whose tensors cannot be differentiated, and where no gradient is wanted."""
    with torch.inference_mode():
        assert best() in ("fused", "recompute")
    (case,) = choice._chosen
    assert case.gradients == (False, False)


@pytest.mark.gpu
@pytest.mark.parametrize("product", [torch.float32, torch.bfloat16])
def test_candidates_are_right_on_this_gpu(product: torch.dtype) -> None:
    x, weight, centers = (each.detach().cuda() for each in operands(5000))
    given = Operands((x.requires_grad_(),), (weight.requires_grad_(),), (centers, WIDTH), product)
    operation = choice.RADIAL_LINEAR
    assert all(choice.is_right(name, operation, given) for name in operation.candidates)
    with torch.autocast("cuda", product, enabled=product != torch.float32):
        name = choice.name_of_best(operation, (3, 4, 8), given.rows, given.weights, given.constants)
    assert name in operation.candidates


@pytest.mark.gpu
@pytest.mark.parametrize("product", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "centers"), [(1, 1, 1, 2), (130, 40, 70, 8), (5000, 768, 300, 8), (700, 28, 64, 5)]
)
def test_layers_of_bytes_are_right_on_this_gpu(
    rows: int, inputs: int, outputs: int, centers: int, product: torch.dtype
) -> None:
    stored = torch.randint(0, 256, (rows, inputs), dtype=torch.uint8, device="cuda")
    sizes = ((outputs, inputs * centers), (outputs, inputs), (outputs,))
    weights = tuple(torch.randn(size, device="cuda", requires_grad=True) for size in sizes)
    given = Operands((stored,), weights, (torch.linspace(-2, 2, centers, device="cuda"), WIDTH), product)
    assert choice.is_right("fused", gpu_layers.BYTE_LAYER, given)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("networks", "rows", "inputs", "centers"), [(1, 1, 2, 2), (2, 37, 20, 8), (4, 5000, 128, 8), (1, 700, 300, 16)]
)
@pytest.mark.parametrize("dropped", [0, 1 << 30])
def test_hidden_layers_are_right_on_this_gpu(networks: int, rows: int, inputs: int, centers: int, dropped: int) -> None:
    sizes = (inputs, inputs, inputs * centers, inputs, 1)
    weights = tuple(torch.randn(networks, size, device="cuda", requires_grad=True) for size in sizes)
    keys = torch.randint(-(1 << 31), 1 << 31, (rows + networks * inputs,), device="cuda").int()
    x = torch.randn(rows, networks * inputs, device="cuda", requires_grad=True)
    constants = (torch.linspace(-2, 2, centers, device="cuda"), WIDTH, keys[rows:], dropped)
    given = Operands((x, keys[:rows] if dropped else None), weights, constants, torch.float32)
    assert choice.is_right("fused", gpu_layers.HIDDEN_LAYER, given)
