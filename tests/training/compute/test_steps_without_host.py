"""What a GPU is to do alone needs nothing of the host: every kind of step, on a GPU that is not there."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorDeviceMismatchError

from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import SliceBatches
from dkan_core.model.additive_shape import AdditiveShape, FeatureCuts
from dkan_core.model.architecture import ModelConfig, SparseGroup
from dkan_core.model.build import build_model
from dkan_core.model.kernels import choice
from dkan_core.training.collectives import DEVICE_STRATEGIES, ddp
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute import resident_rows
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.state.parameter_store import UpdateRules
from tests.model.architectures import CONFIG, changed
from tests.training.compute.fake_gpu import CUDA, HostInvolvedError, NoHost, fake_gpu, fused_kernels
from tests.training.compute.test_device_steps import network, rows_in_memory, settings

BATCH = 128

every_step = pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16"},
        {"accumulate": 3, "clip_norm": None},
        {"pos_weight": 2.0, "label_weights": (0.5,)},
        {"input_norm": "layer"},
    ],
)


@pytest.fixture(autouse=True)
def rows_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_rows, "fits_device", lambda reader, device: True)


@contextmanager
def steps_on_gpu(
    changes: dict[str, object], patch: pytest.MonkeyPatch, architecture: ModelConfig | None = None
) -> Iterator[DeviceSteps]:
    config = settings(**changes)
    reader = rows_in_memory()
    if architecture is not None and architecture.sparse:
        reader = ArraysReader({**reader.arrays, "sparse": np.zeros((reader.rows, 4), np.int32)})
    model = (network(config) if architecture is None else build_model(architecture)).to("meta")
    rules = UpdateRules.from_config(config, reader.rows, parameter_groups(model, config, reader.rows))
    with fake_gpu(patch), closing(SliceBatches(reader, config, 0)) as batches:
        yield DeviceSteps(Replica(model.to_empty(device=CUDA), CUDA), batches, rules)


@every_step
def test_step_needs_nothing_of_the_host(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    with steps_on_gpu(changes, monkeypatch) as steps, fused_kernels(monkeypatch) as launched:
        check_needs_no_host(steps, launched)


def check_needs_no_host(steps: DeviceSteps, launched: Sequence[str]) -> None:
    # As in a run, the first step is not the one that is captured: it makes constants.
    steps._step(steps._rows(0, 0, BATCH))
    before = len(launched)
    with NoHost():  # type: ignore[no-untyped-call]
        steps._step(steps._rows(0, 0, BATCH))
    assert len(launched) == 2 * before > 0


NETWORK = changed(CONFIG, labels=("label",), binary=(), cardinalities=(5, 5))
CURVES = AdditiveShape(
    form="curves",
    monotone=((0, 1),),
    pairs=((1, 2), (2, 4)),
    binned=tuple(FeatureCuts(feature=feature, cuts=(2,)) for feature in (1, 2, 4)),
)
ADDITIVE = {"model": "additive", "embedded": (), "hidden": (), "one_hot_groups": ((1,),), "missing": (), "dropout": 0.2}


@pytest.mark.parametrize(
    "architecture",
    [
        NETWORK.model_copy(update={"sparse": (SparseGroup(codes=9, ones=2.0),)}),
        NETWORK.model_copy(update={**ADDITIVE, "additive": CURVES}),
    ],
    ids=["sparse columns", "additive"],
)
def test_step_of_another_model_needs_nothing_of_the_host(
    architecture: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with steps_on_gpu({}, monkeypatch, architecture) as steps, fused_kernels(monkeypatch) as launched:
        check_needs_no_host(steps, launched)


def test_kernels_of_a_step_are_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    choose, compiled = choice.name_of_best, []
    with steps_on_gpu({"accumulate": 2}, monkeypatch) as steps, fused_kernels(monkeypatch):
        monkeypatch.setattr(choice, "name_of_best", choose)
        monkeypatch.setattr(choice, "device_name", lambda device: "absent")
        monkeypatch.setattr(choice, "_compile", lambda operation, operands: compiled.append((operation, operands)))
        steps._compile(0, 0)
    assert {operation.name for operation, _ in compiled} == {"byte layer", "radial_linear", "hidden layer"}
    inputs = {operation.name: operands.rows[0] for operation, operands in compiled}
    assert len(inputs["byte layer"]) == BATCH // 2, "as a step computes it"
    assert inputs["hidden layer"].requires_grad and not inputs["byte layer"].requires_grad


class FakeGroup(ProcessGroup):
    """Another rank of whom nothing is known: sums have no numbers on such a GPU."""

    def __init__(self) -> None:
        self.rank, self.size, self.device = 0, 2, CUDA
        self.sums = 0

    def all_reduce(self, buffer_N: Tensor) -> None:
        assert buffer_N.device == CUDA and buffer_N.is_contiguous()
        self.sums += 1

    @contextmanager
    def exit_on_peer_loss(self) -> Iterator[None]:
        yield

    def exchange_with_neighbors(self, out_N: Tensor, into_N: Tensor) -> None:
        self.all_reduce(into_N.zero_())


class FakeDdp(nn.Module):
    """Stands for torch's, which averages by itself, but takes no tensors without numbers."""

    def __init__(self, module: nn.Module, device_ids: list[torch.device], init_sync: bool) -> None:
        super().__init__()
        assert device_ids == [CUDA] and not init_sync
        self.module = module

    def forward(self, **inputs: Tensor) -> Tensor:
        logits: Tensor = self.module(**inputs)
        return logits

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize(("strategy", "sums"), [("allreduce", 1), ("ring", 2), ("ddp", 1), ("local-sgd", 0)])
def test_step_of_several_gpus_needs_nothing_of_the_host(
    strategy: str, sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what ends a round of it needs nothing either; so with rows, and where a rank has none of a step."""
    monkeypatch.setattr(ddp, "DistributedDataParallel", FakeDdp)
    with steps_on_gpu({"clip_norm": 1.0, "accumulate": 2}, monkeypatch) as alone, fused_kernels(monkeypatch):
        group = FakeGroup()
        exchange = DEVICE_STRATEGIES[strategy](group, alone.replica, alone.rules)
        steps = DeviceSteps(alone.replica, alone.batches, alone.rules, exchange=exchange)
        assert bool(exchange.why_not_captured) == (strategy == "ddp")
        # As in a run, the first step is not the one that is captured: it makes constants.
        steps._step(steps._rows(0, 0, BATCH))
        for rows in (BATCH, 0):
            group.sums = 0
            with NoHost():  # type: ignore[no-untyped-call]
                steps._step(steps._rows(0, 0, rows))
            assert group.sums == sums
        with NoHost():  # type: ignore[no-untyped-call]
            exchange.end_round(steps.state_3P, 4 * BATCH)


@pytest.mark.parametrize("look", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: x + torch.ones(3)])
def test_looks_of_the_host_are_noticed(look: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    refused = (HostInvolvedError, DataDependentOutputException, FakeTensorDeviceMismatchError)
    with fake_gpu(monkeypatch):
        x = torch.ones(3, device=CUDA)
        with NoHost(), pytest.raises(refused):  # type: ignore[no-untyped-call]
            look(x)
