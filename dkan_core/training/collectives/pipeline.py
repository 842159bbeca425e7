"""Pipeline parallelism (GPipe: Huang et al. 2019, arXiv:1811.06965): ranks have consecutive layers.

The rows of a step pass through the ranks in micro-batches, so that a rank computes one while others compute the next;
``torch.distributed.pipelining`` sends the activations. It requires the same number of rows in all micro-batches of a
run, so batches are padded with rows without a measured label, which change nothing.

Shape suffixes: M members, B rows of a micro-batch, L labels, O units of a member.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.model.base import TabularModel
from dkan_core.model.fastkan import FastKAN
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.collectives.model_parallel import ModelParallelism
from dkan_core.training.compute.loss import masked_loss, total_weight
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.utils.arrays import Arrays

if TYPE_CHECKING:
    from torch.distributed.pipelining import ScheduleGPipe


class Pipeline(ModelParallelism):
    """Each rank has consecutive layers, their numbers differing by at most one; the first also has the encoder."""

    _schedule: "ScheduleGPipe | None" = None

    def take_part(self, model: TabularModel) -> TabularModel:
        """Keep this rank's layers."""
        assert isinstance(model, TabularFastKAN), "other models are refused"
        self._stage = Stage(model, self.part_index, self.per_copy, self.config.precision)
        return model

    def add_gradient(self, arrays: Arrays) -> LossTotals:
        """Send the rows through all ranks, and the gradients back."""
        batch = {
            name: padded(tensor, self._parts * self._part_rows, NOT_MEASURED if name == "labels" else 0)
            for name, tensor in to_tensors(arrays, self.part.device).items()
        }
        given: dict[str, Any] = {"dropout_key_B": batch["dropout_key"]}
        if self._stage.is_first:
            given |= {name: batch[name] for name in ("numeric", "categorical") if name in batch}
        if not self._stage.is_last:
            self._steps.step(**given)
            return LossTotals(0.0, 0.0, 0)
        losses: list[Tensor] = []
        weight_B = batch.get("weight", torch.ones_like(batch["dropout_key"], dtype=torch.float32))
        self._steps.step(**given, target=torch.cat([batch["labels"], weight_B.unsqueeze(1)], dim=1), losses=losses)
        weight = total_weight(batch, self.config).item()
        loss = torch.stack(losses).sum().item() / weight if weight else 0.0
        return LossTotals(loss, weight, len(arrays["labels"]))

    @property
    def _parts(self) -> int:
        """Micro-batches of a step: at least one per rank, so that all compute at once for some of the time."""
        return max(self.per_copy, self.config.accumulate)

    @property
    def _part_rows(self) -> int:
        return -(-self.config.batch_size // self._parts)

    @property
    def _steps(self) -> "ScheduleGPipe":
        if self._schedule is None:
            # It takes three seconds to import.
            from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

            # With the shapes given, ranks need not send each other pickled ones.
            shapes = self._stage.shapes(self._part_rows)
            inputs, outputs = (
                tuple(torch.empty(shape, device="meta", requires_grad=True) for shape in each) for each in shapes
            )
            stage = PipelineStage(self._stage, self.part_index, self.per_copy, self.part.device, inputs, outputs)
            self._schedule = ScheduleGPipe(stage, self._parts, loss_fn=self._loss, scale_grads=False)
        return self._schedule

    def _loss(self, logits_BML: Tensor, target_BC: Tensor) -> Tensor:
        """Return the loss of a micro-batch, summed over its labels; the target's last column is the rows' weight."""
        total = torch.ones((), device=logits_BML.device)
        rows = {"labels": target_BC[:, :-1], "weight": target_BC[:, -1]}
        return masked_loss(logits_BML.transpose(0, 1), rows, self.config, total)


class Stage(nn.Module):
    """Consecutive layers of a model; its other parameters are dropped.

    Args:
        model: The model, changed.
        stage: Index of this stage.
        stages: How many there are.
        precision: "fp32" or "bf16", of matrix products.

    Shape:
        - Input: ``(M, B, O)`` of the stage before, nothing for the first; keys ``(B,)`` and for the first the rows
        - Output: ``(M, B, O)``, of the last stage ``(B, M, L)``
    """

    def __init__(self, model: TabularFastKAN, stage: int, stages: int, precision: str) -> None:
        super().__init__()
        self.model, self.precision = model, precision
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        network = model.network
        self.is_ensemble = not isinstance(network, FastKAN)
        layers = [*network.layers]
        start, stop = (len(layers) * edge // stages for edge in (stage, stage + 1))
        self.edges = [index for index in (start, stop) if 0 < index < len(layers)]
        self.layers = [(network.dropouts[index - 1], layers[index]) for index in range(max(1, start), stop)]
        owned = [*layers[start:stop], *([model.encoder] if self.is_first else [])]
        kept = {parameter for module in owned if module is not None for parameter in module.parameters()}
        kept |= {model.bias} if self.is_last else set()
        for parameter in model.parameters():
            if parameter not in kept:
                parameter.requires_grad_(False).data = parameter.new_empty(0)

    def shapes(self, rows: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return the shapes of this stage's inputs and outputs for ``rows`` rows."""
        config = self.model.config
        between: list[tuple[int, ...]] = [(config.members, rows, config.hidden[index - 1]) for index in self.edges]
        logits: tuple[int, ...] = (rows, config.members, len(config.labels))
        return ([] if self.is_first else between[:1]), ([logits] if self.is_last else between[-1:])

    def forward(
        self,
        x_MBO: Tensor | None = None,
        *,
        dropout_key_B: Tensor,
        numeric: Tensor | None = None,
        categorical: Tensor | None = None,
    ) -> Tensor:
        with torch.autocast(dropout_key_B.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            if x_MBO is None:
                first_BH = self.model.first_output(numeric, categorical, dropout_key_B)
                x_MBO = first_BH.unflatten(1, (self.model.config.members, -1)).transpose(0, 1)
            x = x_MBO if self.is_ensemble else x_MBO[0]
            for dropout, layer in self.layers:
                x = layer(x, dropout, dropout_key_B)
            x_MBO = x if self.is_ensemble else x.unsqueeze(0)
        return ((x_MBO + self.model.bias).transpose(0, 1) if self.is_last else x_MBO).float().contiguous()


def padded(rows: Tensor, count: int, value: int) -> Tensor:
    """Return ``count`` rows, the last of them made up of one value.

    >>> padded(torch.tensor([[1, 2]]), 3, 0).tolist()
    [[1, 2], [0, 0], [0, 0]]
    """
    return torch.cat([rows, rows.new_full((count - len(rows), *rows.shape[1:]), value)])
