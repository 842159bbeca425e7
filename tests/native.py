"""The native extension for tests: they are left out where it could not be built, and say why."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from dkan_core.native.build import NoCompilerError, find_compiler
from dkan_core.native.library import native_library, require_library, variant_names


def why_missing() -> str:
    """Return why there is no extension, an empty text if there is one."""
    if native_library() is not None:
        return ""
    try:
        find_compiler()
    except NoCompilerError as error:
        return str(error)
    return "the native extension is not built: python -m dkan_core.native.build"


VARIANTS = range(len(variant_names(require_library())) if native_library() else 0)


@pytest.fixture(params=VARIANTS, ids=lambda index: variant_names(require_library())[index])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Use one kind of processor's code after the other, as far as this one runs them; its name."""
    require_library().dkan_use_variant(request.param)
    yield variant_names(require_library())[request.param]
    require_library().dkan_use_variant(0)


needs_native = pytest.mark.skipif(native_library() is None, reason=why_missing())

TOLERANCE = 4e-6
Leaves = list[Tensor]


def relative_errors(found: Callable[..., Tensor], exact: Callable[..., Tensor], leaves: Leaves) -> list[float]:
    """Return the errors of value and gradients against the formula in float64."""
    leaves = [leaf.requires_grad_() for leaf in leaves]
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    outputs = found(*leaves), exact(*doubles)
    direction = torch.randn(outputs[0].shape)
    gradients = [
        torch.autograd.grad(output, inputs, direction.to(output.dtype), allow_unused=True, materialize_grads=True)
        for output, inputs in zip(outputs, (leaves, doubles), strict=True)
    ]
    pairs = [outputs, *zip(*gradients, strict=True)]
    assert all(torch.equal(leaf.double(), double) for leaf, double in zip(leaves, doubles, strict=True)), "changed"
    assert all(each.dtype == torch.float32 and each.isfinite().all() for each, _ in pairs)
    differences = [((each.detach().double() - right).norm(), right.norm()) for each, right in pairs]
    return [float(difference.detach() / norm.detach().clamp(min=1e-300)) for difference, norm in differences]
