"""The native extension's code for one kind of processor after the other, and any number of threads."""

from collections.abc import Callable, Iterator

import pytest
import torch

from dkan_core.native.library import native_library, require_library, variant_names

VARIANTS = range(len(variant_names(require_library())) if native_library() else 0)


@pytest.fixture(params=VARIANTS, ids=lambda index: variant_names(require_library())[index])
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use one kind of processor's code after the other, as far as this one runs them."""
    require_library().dkan_use_variant(request.param)
    yield
    require_library().dkan_use_variant(0)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
