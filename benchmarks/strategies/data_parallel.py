"""torch's DataParallel: one process, a thread and a copy of the model per GPU; measured if there are several GPUs."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import SliceBatches, open_split
from dkan_core.data.loading.order import steps_per_epoch
from dkan_core.evaluation.metrics import macro_average_precision
from dkan_core.model.base import TabularModel
from dkan_core.scoring.prepared import score_split
from dkan_core.training.compute.flat_model import trained_parameters
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.untrained_model import untrained_model


class MemberLogits(nn.Module):
    """The members' log-odds ``(B, M, L)``: rows first, as DataParallel divides and joins them."""

    def __init__(self, model: TabularModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, numeric_BF: Tensor | None, categorical_BC: Tensor | None, dropout_key_B: Tensor) -> Tensor:
        """Return the log-odds of some rows."""
        return self.model.member_logits(numeric_BF, categorical_BC, dropout_key_B).transpose(0, 1)


def is_possible(workers: int) -> bool:
    """Return whether there are so many GPUs, and more than one."""
    return 1 < workers <= torch.cuda.device_count()


def train(prepared: Path, config: ResolvedTrainConfig, devices: Sequence[int]) -> tuple[float, float]:
    """Train on every row ``config.epochs`` times.

    Args:
        prepared: Prepared data.
        config: Settings of a run with one worker; its batches are those of all devices together.
        devices: Numbers of GPUs; none for one process on the CPU, to try it out.

    Returns:
        Seconds of an epoch after the first, and average precision on the validation split.
    """
    manifest = read_manifest(prepared)
    device = torch.device("cuda", devices[0]) if devices else torch.device("cpu")
    steps = steps_per_epoch(manifest.splits["train"].rows, config.batch_size)
    with open_split(prepared, manifest, "train") as reader:
        model = untrained_model(choose_architecture(reader, manifest, config), manifest, config).to(device).train()
        optimizer = torch.optim.AdamW(trained_parameters(model), config.learning_rate, fused=True)
        parallel = nn.DataParallel(MemberLogits(model), device_ids=list(devices))
        batches = SliceBatches(reader, config, 0)
        started = 0.0
        for step in range(steps * config.epochs):
            if step == steps:
                started = _now(device)
            batch = to_tensors(batches.get(step, 0), device)
            logits_BML = parallel(batch.get("numeric"), batch.get("categorical"), batch["dropout_key"])
            labels_BML = batch["labels"].to(logits_BML.dtype).unsqueeze(1).expand_as(logits_BML)
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.binary_cross_entropy_with_logits(logits_BML, labels_BML))
            optimizer.step()
        seconds = (_now(device) - started) / (config.epochs - 1)
    with open_split(prepared, manifest, "valid") as reader:
        scored = score_split(model.eval(), reader, device)
    return seconds, macro_average_precision(scored.labels_NL, scored.log_odds_NL, scored.weight_N)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
