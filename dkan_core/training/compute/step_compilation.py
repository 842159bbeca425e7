"""Compiles the kernels of a step in threads, before the first step would compile one after the other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.kernels import compilation
from dkan_core.training.compute import device_adamw
from dkan_core.training.compute.gradient import parts_of
from dkan_core.training.compute.loss import part_loss
from dkan_core.utils.resources import available_cores

THREADS = 8
"""At most: a step has about five kernels or pairs of them that are compiled apart from each other."""


def compile_step(
    model: TabularModel, batch_of_step: Callable[[], dict[str, Tensor]], config: ResolvedTrainConfig
) -> None:
    """Compile what a step takes on a GPU; neither the model nor its gradients change."""
    device = next(model.parameters()).device
    with ThreadPoolExecutor(min(THREADS, available_cores())) as pool:
        adamw = pool.submit(device_adamw.fused_is_right, device)
        # If memory does not suffice, the step itself reports it.
        with suppress(torch.OutOfMemoryError), compilation.side_by_side(pool):
            first, *_ = parts_of(batch_of_step(), config)
            part_loss(model.member_logits, first, config, torch.ones((), device=device))
        adamw.result()
