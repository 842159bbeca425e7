"""What a GPU is to do alone needs nothing of the host: every kind of step, on a GPU that is not there."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorDeviceMismatchError

from dkan_core.data.loading.loader import SliceBatches
from dkan_core.training.compute import resident_rows
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import decayed_ranges
from dkan_core.training.state.parameter_store import Rules
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
def steps_on_gpu(changes: dict[str, object], patch: pytest.MonkeyPatch) -> Iterator[DeviceSteps]:
    config = settings(**changes)
    reader = rows_in_memory()
    model = network(config).to("meta")
    rules = Rules.from_config(config, reader.rows, decayed_ranges(model, config, reader.rows))
    with fake_gpu(patch), closing(SliceBatches(reader, config, 0)) as batches:
        yield DeviceSteps(Replica(model.to_empty(device=CUDA), CUDA), batches, rules)


@every_step
def test_step_needs_nothing_of_the_host(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    with steps_on_gpu(changes, monkeypatch) as steps, fused_kernels(monkeypatch) as launched:
        # As in a run, the first step is not the one that is captured: it makes constants.
        steps._step_on_resident_rows(BATCH)
        before = len(launched)
        with NoHost():  # type: ignore[no-untyped-call]
            steps._step_on_resident_rows(BATCH)
    assert len(launched) == 2 * before > 0


@pytest.mark.parametrize("look", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: x + torch.ones(3)])
def test_looks_of_the_host_are_noticed(look: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    refused = (HostInvolvedError, DataDependentOutputException, FakeTensorDeviceMismatchError)
    with fake_gpu(monkeypatch):
        x = torch.ones(3, device=CUDA)
        with NoHost(), pytest.raises(refused):  # type: ignore[no-untyped-call]
            look(x)
