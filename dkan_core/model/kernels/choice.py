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
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dkan_core.errors import DataError
from dkan_core.model.kernels import eager, recompute, verified
from dkan_core.utils.schemas import Schema, read_json

Name = Literal["fused", "recompute", "compile"]
RadialLinear = Callable[[Tensor, Tensor, Tensor, float], Tensor]

CHECKED_ROWS = 4096
"""Of a batch, at most: the formula written out keeps the basis of all of them."""

TURNS = 5
"""Of each candidate, after ``WARMUP`` that are not counted; the median counts."""

WARMUP = 2

WORTH_COMPILING = 1e-3
"""Seconds of a pass from which on torch.compile is tried: it takes up to a minute, which less never gives back."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Case:
    """What a choice holds for: the names and versions of what computes, and the sizes of what is computed."""

    device: str
    versions: str
    shape: tuple[int, ...]
    """Networks side by side, inputs, outputs and centers."""

    rows: int
    """Rounded up to a power of two: the last batch of an epoch is of the same kind."""

    product: str
    """Type of the operands of matrix products."""

    gradients: tuple[bool, bool]
    """Of inputs and weights."""

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        return f"{self.rows} rows, {sizes}, {self.product}{', with gradients' if any(self.gradients) else ''}"


class Choice(Schema):
    """The file of a choice."""

    kernel: Name
    milliseconds: dict[Name, float]
    """Of a pass, by each candidate that was right."""


@dataclass(frozen=True)
class Operands:
    """What a candidate is given."""

    x_BI: Tensor
    weight_OK: Tensor
    centers_G: Tensor
    width: float
    product: torch.dtype

    def passes(self, compute: RadialLinear, rows: int | None = None) -> list[Tensor]:
        """Return the result for the first rows, and the gradients of what needs them, as in a step."""
        given = ((self.x_BI[..., :rows, :], self.x_BI), (self.weight_OK, self.weight_OK))
        leaves = [part.detach().clone().requires_grad_(whole.requires_grad) for part, whole in given]
        wanted = [leaf for leaf in leaves if leaf.requires_grad and torch.is_grad_enabled()]
        device = self.x_BI.device.type
        half = self.product != torch.float32
        with torch.autocast(device, self.product if half else torch.bfloat16, enabled=half):
            out_BO = compute(leaves[0], leaves[1], self.centers_G, self.width)
        direction_BO = torch.sin(torch.arange(out_BO.numel(), device=out_BO.device)).view_as(out_BO)
        found = torch.autograd.grad(out_BO, wanted, direction_BO.to(out_BO.dtype)) if wanted else ()
        return [out_BO.detach(), *found]


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


CANDIDATES: dict[Name, RadialLinear] = {
    "fused": verified.radial_linear,
    "recompute": recompute.radial_linear,
    "compile": compute_compiled,
}
"""In the order in which they are preferred where nothing can be kept."""

_chosen: dict[Case, Name] = {}


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``, by the candidate that is the best for such a batch."""
    if not weight_OK.is_cuda:
        return recompute.radial_linear(x_BI, weight_OK, centers_G, width)
    return CANDIDATES[name_of_best(x_BI, weight_OK, centers_G, width)](x_BI, weight_OK, centers_G, width)


def name_of_best(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Name:
    """Return which candidate is taken for a batch; the first one of its kind decides."""
    device = x_BI.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_OK.dtype
    needed = torch.is_grad_enabled()
    case = Case(
        device=device_name(x_BI.device),
        versions=versions(),
        shape=(*weight_OK.shape[:-2], x_BI.shape[-1], weight_OK.shape[-2], len(centers_G)),
        rows=1 << max(0, x_BI.shape[-2] - 1).bit_length(),
        product=str(product),
        gradients=(needed and x_BI.requires_grad, needed and weight_OK.requires_grad),
    )
    if case not in _chosen:
        # The first caller may be scoring, in a mode whose tensors cannot be differentiated.
        with torch.inference_mode(False), torch.set_grad_enabled(needed):
            _chosen[case] = _choose(case, Operands(x_BI, weight_OK, centers_G, width, product))
    return _chosen[case]


def _choose(case: Case, operands: Operands) -> Name:
    """Return the candidate that is kept for a case, or else the fastest, if it is right; the plainest is if none is."""
    path = choices_folder() / f"{hashlib.sha256(repr(astuple(case)).encode()).hexdigest()[:32]}.json"
    kept = _read(path)
    if kept is not None and is_right(kept.kernel, operands):
        logger.info("%s computes %s: the fastest of an earlier run", kept.kernel, case)
        return kept.kernel
    seconds = _times(case, operands)
    if not seconds:
        return "recompute"
    best = min(seconds, key=lambda name: seconds[name])
    figures = ", ".join(f"{name} {1e3 * each:.3g} ms" for name, each in seconds.items())
    found = Choice(kernel=best, milliseconds={name: 1e3 * each for name, each in seconds.items()})
    kept = _keep(path, found) if kept is None else None
    if kept is None:
        # By the clock, another process would take another.
        best = next(iter(seconds))
    elif kept.kernel in seconds:
        best = kept.kernel
    logger.info("%s computes %s: %s", best, case, figures)
    return best


def _times(case: Case, operands: Operands) -> dict[Name, float]:
    """Return the seconds of a pass by each candidate that is right."""
    seconds: dict[Name, float] = {}
    for name in CANDIDATES:
        worth = any(case.gradients) and min(seconds.values(), default=0.0) > WORTH_COMPILING
        if (name != "compile" or worth) and is_right(name, operands):
            seconds[name] = pass_seconds(name, operands)
    return seconds


def is_right(name: Name, operands: Operands) -> bool:
    """Tell whether a candidate gives what the formula says in float32; a warning says so where it does not."""
    x_BI, weight_OK, centers_G = (each.float() for each in (operands.x_BI, operands.weight_OK, operands.centers_G))
    exact = Operands(x_BI, weight_OK, centers_G, operands.width, torch.float32)
    try:
        found = operands.passes(CANDIDATES[name], CHECKED_ROWS)
    except RuntimeError as error:  # of the compiler, or of the device's memory
        logger.warning("kernel %s does not run on %s (%s)", name, operands.x_BI.device, str(error).partition("\n")[0])
        return False
    expected = exact.passes(eager.radial_linear, CHECKED_ROWS)
    errors = [float((a.double() - b).norm() / b.norm().clamp(min=1e-30)) for a, b in zip(found, expected, strict=True)]
    limit = verified.TOLERANCES.get(operands.product, 0.0)
    # One by one: the largest of numbers with a NaN among them may be any.
    if all(error <= limit for error in errors):
        return True
    differences = ", ".join(f"{error:.1e}" for error in errors)
    logger.warning("kernel %s differs by %s on %s; it is not used", name, differences, operands.x_BI.device)
    return False


def pass_seconds(name: Name, operands: Operands) -> float:
    """Return the median time of a pass over the whole batch."""
    device = operands.x_BI.device
    found = []
    for _ in range(WARMUP + TURNS):
        _wait_for(device)
        began = time.perf_counter()
        operands.passes(CANDIDATES[name])
        _wait_for(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found[WARMUP:])


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
