"""Which backend computes on a GPU: of those that are right there, on rows of the run, the fastest.

The first batch of its kind is computed by each and compared with the formula in float32, result and gradients. A
kernel that is wrong or cannot be compiled on somebody's device costs seconds, never a result. What was the fastest is
kept in a file by device and shape: other processes, and later runs, take the same, so that they give the same bits.
"""

import functools
import hashlib
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dkan_core.errors import DataError
from dkan_core.model.kernels import compilation, eager, recompute, verified
from dkan_core.utils import gpu
from dkan_core.utils.messages import first_line
from dkan_core.utils.schemas import Schema, read_json

Name = Literal["fused", "recompute", "compile", "parts"]
RadialLinear = Callable[[Tensor, Tensor, Tensor, float], Tensor]
Compute = Callable[..., Tensor]

CHECKED_ROWS = 4096
"""Of a batch, at most: the formula written out keeps the basis of all of them."""

TURNS = 5
"""Of each candidate, after ``WARMUP`` that are not counted; the median counts."""

WARMUP = 2

WORTH_COMPARING = 2e-4
"""Seconds of a pass below which no other candidate is tried: compiling one takes seconds, which a thousand steps that
are a little faster do not give back."""

WORTH_COMPILING = 1e-3
"""Seconds of a pass from which on torch.compile is tried: it takes up to a minute, which less never gives back."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operation:
    """Something that there are several ways to compute.

    Each is called with tensors that have something for each row, then the weights, then constants.
    """

    name: str
    formula: Compute
    """Written out, in float32."""

    candidates: dict[Name, Compute]
    """In the order in which they are preferred where nothing can be kept."""

    plainest: Name
    """Which one computes if none is right."""

    tolerances: dict[torch.dtype, float]
    """Norm of the error over that of the result, by the type of the operands of matrix products."""


@dataclass(frozen=True)
class Case:
    """Key of a choice: names and versions of hardware and libraries, and the sizes of the computation."""

    operation: str
    device: str
    versions: str
    shape: tuple[int, ...]
    """Networks side by side, inputs, outputs and centers."""

    rows: int
    """Rounded up to a power of two, as the last batch of an epoch is of the same kind; 0 is a kind of its own."""

    product: str
    """Type of the operands of matrix products."""

    gradients: tuple[bool, bool]
    """Of inputs and weights."""

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        return (
            f"{self.operation} of {self.rows} rows, {sizes}, {self.product}"
            f"{', with gradients' if any(self.gradients) else ''}"
        )


class Choice(Schema):
    """The file of a choice."""

    kernel: Name
    milliseconds: dict[Name, float]
    """Of a pass, by each candidate that was right."""


@dataclass(frozen=True)
class Operands:
    """Arguments of a candidate."""

    rows: tuple[Tensor | None, ...]
    """Tensors with something for each row of the batch, in their last dimension but one, or in their only one."""

    weights: tuple[Tensor, ...]
    constants: tuple[Any, ...]
    product: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where all of it lies."""
        return self.weights[0].device

    def as_float32(self) -> "Operands":
        """Return the same in float32, for products in float32."""
        rows, weights, constants = (tuple(map(_as_float32, each)) for each in (self.rows, self.weights, self.constants))
        return Operands(rows, weights, constants, torch.float32)

    def passes(self, compute: Compute, rows: int | None = None) -> list[Tensor]:
        """Return the result for the first rows, and the gradients of what needs them, as in a step."""
        parts = [None if each is None else _first_rows(each, rows) for each in self.rows]
        given = [*zip(parts, self.rows, strict=True), *zip(self.weights, self.weights, strict=True)]
        leaves = [None if part is None else part.detach().clone() for part, _ in given]
        for leaf, (_, whole) in zip(leaves, given, strict=True):
            if leaf is not None and whole is not None:
                leaf.requires_grad_(whole.requires_grad)
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad and torch.is_grad_enabled()]
        half = self.product != torch.float32
        with torch.autocast(self.device.type, self.product if half else torch.bfloat16, enabled=half):
            out = compute(*leaves, *self.constants)
        # No sum of it over rows is about 0, as the gradient of a bias would be.
        direction = 1 + torch.sin(torch.arange(out.numel(), device=out.device)).view_as(out)
        # Of a sum: given the gradient of the result, autograd imports SymPy, which takes a second or more.
        found = torch.autograd.grad((out.float() * direction).sum(), wanted) if wanted else ()
        return [out.detach(), *found]


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _first_rows(tensor: Tensor, rows: int | None) -> Tensor:
    return tensor[:rows] if tensor.dim() == 1 else tensor[..., :rows, :]


@functools.cache
def compiled() -> RadialLinear:
    """Return the formula compiled by torch, which tries tilings; in this process, which leaves no others behind."""
    function: RadialLinear = torch.compile(eager.radial_linear, options={"max_autotune": True, "compile_threads": 1})
    return function


def compute_compiled(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``, compiled."""
    with warnings.catch_warnings():
        # While it traces, torch looks at the gradient of what is no leaf, and warns of that.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
        return compiled()(x_BI, weight_OK, centers_G, width)


def compute_fused(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same, by the fused kernels; Triton, which they need, may be missing."""
    from dkan_core.model.kernels import fused

    return fused.radial_linear(x_BI, weight_OK, centers_G, width)


RADIAL_LINEAR = Operation(
    "radial_linear",
    eager.radial_linear,
    {"fused": compute_fused, "recompute": recompute.radial_linear, "compile": compute_compiled},
    "recompute",
    verified.TOLERANCES,
)

_chosen: dict[Case, Name] = {}


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``, by the candidate that is the best for such a batch."""
    shape = (*weight_OK.shape[:-2], x_BI.shape[-1], weight_OK.shape[-2], len(centers_G))
    name = name_of_best(RADIAL_LINEAR, shape, (x_BI,), (weight_OK,), (centers_G, width))
    if name is None:
        return compilation.stand_in(*x_BI.shape[:-1], weight_OK.shape[-2], device=x_BI.device)
    return RADIAL_LINEAR.candidates[name](x_BI, weight_OK, centers_G, width)


def name_of_best(
    operation: Operation,
    shape: tuple[int, ...],
    rows: tuple[Tensor | None, ...],
    weights: tuple[Tensor, ...],
    constants: tuple[Any, ...],
) -> Name | None:
    """Return which candidate is taken for a batch; the first one of its kind decides.

    While candidates are compiled, return None for what is not decided: see ``compilation``.

    Args:
        operation: What is computed.
        shape: Networks side by side, inputs, outputs and centers.
        rows: Tensors with something for each row; the first are the inputs.
        weights: What is learned.
        constants: Other arguments of the candidates.
    """
    x, weight = rows[0], weights[0]
    assert x is not None
    device, count = weight.device, x.shape[-2]
    product = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else weight.dtype
    needed = torch.is_grad_enabled()
    case = Case(
        operation=operation.name,
        device=device_name(device),
        versions=versions(),
        shape=shape,
        rows=1 << (count - 1).bit_length() if count else 0,
        product=str(product),
        gradients=(needed and x.requires_grad, needed and weight.requires_grad),
    )
    if case not in _chosen and compilation.is_collecting():
        compilation.add(case, functools.partial(_compile, operation, Operands(rows, weights, constants, product)))
        return None
    if case not in _chosen:
        # The first caller may be scoring, in a mode whose tensors cannot be differentiated.
        with torch.inference_mode(False), torch.set_grad_enabled(needed):
            _chosen[case] = _choose(case, operation, Operands(rows, weights, constants, product))
    return _chosen[case]


def _compile(operation: Operation, operands: Operands) -> None:
    """Compile the candidate that is tried first."""
    first = next(iter(operation.candidates.values()))
    # What fails here fails again where it is checked, which says so.
    with suppress(*verified.kernel_errors()), torch.cuda.device_of(operands.weights[0]):
        operands.passes(first, CHECKED_ROWS)


def _choose(case: Case, operation: Operation, operands: Operands) -> Name:
    """Return the candidate that is kept for a case, or else the fastest, if it is right; the plainest if none is."""
    path = choices_folder() / f"{hashlib.sha256(repr(astuple(case)).encode()).hexdigest()[:32]}.json"
    kept = _read(path)
    if kept is not None and kept.kernel in operation.candidates and is_right(kept.kernel, operation, operands):
        logger.debug("%s computes %s: the fastest of an earlier run", kept.kernel, case)
        return kept.kernel
    seconds = _times(case, operation, operands)
    if not seconds:
        return operation.plainest
    best = min(seconds, key=lambda name: seconds[name])
    figures = ", ".join(f"{name} {1e3 * each:.3g} ms" for name, each in seconds.items())
    found = Choice(kernel=best, milliseconds={name: 1e3 * each for name, each in seconds.items()})
    kept = _keep(path, found) if kept is None else None
    if kept is None:
        # By the clock, another process would take another.
        best = next(iter(seconds))
    elif kept.kernel in seconds:
        best = kept.kernel
    logger.debug("%s computes %s: %s", best, case, figures)
    return best


def _times(case: Case, operation: Operation, operands: Operands) -> dict[Name, float]:
    """Return the seconds of a pass by each candidate that is right, until one is fast enough."""
    seconds: dict[Name, float] = {}
    for name in operation.candidates:
        if min(seconds.values(), default=1.0) < WORTH_COMPARING:
            break
        worth = any(case.gradients) and min(seconds.values(), default=0.0) > WORTH_COMPILING
        if (name != "compile" or worth) and is_right(name, operation, operands):
            # Right for some rows, it may need too much memory for all of them, or be compiled again for their number.
            try:
                seconds[name] = pass_seconds(name, operation, operands)
            except torch.OutOfMemoryError:
                logger.warning("kernel %s of %s runs out of memory on %s", name, operation.name, operands.device)
                torch.cuda.empty_cache()
            except verified.kernel_errors() as error:
                gpu.check_works(operands.device)
                why = first_line(error)
                logger.warning("kernel %s of %s fails on all rows of a batch (%s)", name, operation.name, why)
    return seconds


def is_right(name: Name, operation: Operation, operands: Operands) -> bool:
    """Return whether a candidate gives what the formula says in float32; a warning says so where it does not."""
    return verified.is_right(
        f"kernel {name} of {operation.name}",
        operands.device,
        lambda: relative_errors(operation.candidates[name], operation, operands),
        operation.tolerances.get(operands.product, 0.0),
    )


def relative_errors(compute: Compute, operation: Operation, operands: Operands) -> list[float]:
    """Return those of the result and of the gradients, by norm, against what the formula says in float32."""
    found = operands.passes(compute, CHECKED_ROWS)
    expected = operands.as_float32().passes(operation.formula, CHECKED_ROWS)
    return [verified.relative_error(*pair) for pair in zip(found, expected, strict=True)]


def pass_seconds(name: Name, operation: Operation, operands: Operands) -> float:
    """Return the median time of a pass over the whole batch, on a GPU as part of a CUDA graph, as in a step."""

    def run() -> None:
        operands.passes(operation.candidates[name])

    repeat = captured(run, operands.device) if operands.device.type == "cuda" else run
    found = []
    for _ in range(WARMUP + TURNS):
        _wait_for(operands.device)
        began = time.perf_counter()
        repeat()
        _wait_for(operands.device)
        found.append(time.perf_counter() - began)
    return statistics.median(found[WARMUP:])


def captured(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return what launches the same work at once; where that is impossible, ``run`` itself."""
    for _ in range(WARMUP):
        run()
    try:
        return gpu.capture(run, device).replay
    except gpu.CaptureError as error:
        logger.info("a pass is timed kernel by kernel, as it cannot be captured: %s", error)
        return run


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@functools.cache
def device_name(device: torch.device) -> str:
    """Return what a device is called, the same on every machine that has one."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} ({major}.{minor})"


@functools.cache
def versions() -> str:
    """Return what else a choice depends on: the compilers, and the kernels themselves."""
    kernels = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, kernels {kernels.hexdigest()[:16]}"


def choices_folder() -> Path:
    """Return where choices are kept, by the XDG base directory specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dkan" / "kernels"


def _read(path: Path) -> Choice | None:
    """Return the choice of a file; None where there is none that is whole."""
    try:
        return read_json(Choice, path.read_bytes(), str(path))
    except (OSError, DataError):
        return None


def _keep(path: Path, choice: Choice) -> Choice | None:
    """Keep a choice unless another process has been faster; return what is kept, None where nothing can be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent) as file:
            file.write(choice.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
            try:
                # Unlike a renaming, it leaves a file that is there as it is.
                os.link(file.name, path)
            except FileExistsError:
                return _read(path)
    except OSError as error:
        logger.info("choices of kernels cannot be kept in %s (%s)", path.parent, error)
        return None
    return choice
