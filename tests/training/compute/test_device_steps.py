"""Steps on a device are those of the host: rows, order, dropout and arithmetic."""

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.data.hashing import splitmix64
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import SliceBatches, train_batches
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute import resident_rows
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.training.compute.local_steps import HostSteps
from dkan_core.training.compute.loss import constants
from dkan_core.training.compute.resident_rows import ResidentRows
from dkan_core.training.compute.row_keys import mix_keys
from dkan_core.training.compute.step_graph import WARMUP_STEPS
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.parameter_groups import decayed_ranges
from dkan_core.training.state.adamw import ParameterGroups, Rate, initial_state
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.utils.arrays import Arrays, Float32, Int64
from tests.training.compute.recorded_graph import failing, record_graphs

ROWS = 1000
CPU = torch.device("cpu")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def rows_in_memory(rows: int = ROWS, *, weighted: bool = True) -> ArraysReader:
    rng = np.random.default_rng(0)
    numeric = rng.integers(0, 256, (rows, 3), dtype=np.uint8)
    arrays: Arrays = {
        "numeric": numeric,
        "categorical": rng.integers(0, 5, (rows, 2), dtype=np.int32),
        "labels": np.where(rng.random((rows, 1)) < 0.1, 255, numeric[:, :1] > 100).astype(np.uint8),
    }
    return ArraysReader({**arrays, "weight": rng.random(rows).astype(np.float32)} if weighted else arrays)


def settings(**changes: object) -> ResolvedTrainConfig:
    given = {"strategy": "local-sgd", "sync_interval": 4, "batch_size": 128, "epochs": 3, "clip_norm": 0.05, "seed": 5}
    return resolve(TrainConfig(device="cpu", model="auto", hidden=(8,), **{**given, **changes}), ROWS)  # type: ignore[arg-type]


def network(config: ResolvedTrainConfig) -> TabularFastKAN:
    torch.manual_seed(0)
    return TabularFastKAN(
        ModelConfig(
            labels=("label",),
            model=config.model,
            num_numeric=3,
            binary=(),
            cardinalities=(5, 5),
            embedded=(0,),
            one_hot_groups=((0,), (0, 1)),
            missing=(1,),
            embedding_dim=config.embedding_dim,
            members=2,
            hidden=config.hidden,
            num_centers=config.num_centers,
            grid_min=config.grid_min,
            grid_max=config.grid_max,
            input_norm=config.input_norm,
            dropout=0.3,
            binary_dropout=config.binary_dropout,
        )
    )


def states(
    kind: type[HostSteps] | type[DeviceSteps],
    config: ResolvedTrainConfig,
    device: torch.device = CPU,
    *,
    rank: int = 0,
    slices: Sequence[int] = (),
    reader: ArraysReader | None = None,
    rates: Sequence[Rate] = (),
) -> list[tuple[LossTotals, Float32]]:
    """Return what the work units of two epochs lead to: those of a rank, or on slices that take turns."""
    reader = reader or rows_in_memory()
    model = network(config)
    groups = ParameterGroups(tuple(decayed_ranges(model, config, reader.rows)), tuple(rates))
    rules = UpdateRules.from_config(config, reader.rows, groups)
    state_3P = initial_state(flatten(model).numpy())
    batches = SliceBatches(reader, config, rank)
    steps = kind(Replica(model, device, config.kernel), batches, rules)
    found = []
    order = itertools.cycle(slices or [rank])
    for unit in range(rank, 2 * rules.work_plan.sync_rounds_per_epoch * config.workers, config.workers):
        totals = steps.take(state_3P, rules.work_plan.steps_of_unit(unit), next(order), 0.5)
        found.append((totals, state_3P.copy()))
    batches.close()
    return found


@devices
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_order_and_keys_are_those_of_the_loader(device: str, *, weighted: bool) -> None:
    reader = rows_in_memory(weighted=weighted)
    config = settings()
    resident = ResidentRows(reader, config, torch.device(device))
    for epoch in (0, 1, 0):
        resident.begin_epoch(epoch)
        for step, expected in enumerate(train_batches(reader, seed=config.seed, epoch=epoch, batch_size=128)):
            position = torch.tensor([step * 128], device=device)
            batch = resident.gather(position, torch.tensor([epoch], device=device), len(expected["labels"]))
            assert batch.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(batch[name].cpu().numpy(), array, strict=True)


def test_keys_are_mixed_as_by_numpy() -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 100, dtype=np.uint64)
    mixed = mix_keys(torch.from_numpy(keys.view(np.int64)), seed=3).numpy().view(np.uint64)
    np.testing.assert_array_equal(mixed, splitmix64(keys, seed=3))


@devices
@pytest.mark.parametrize("changes", [{}, {"accumulate": 3}, {"workers": 2}, {"clip_norm": None}])
def test_steps_are_those_of_the_host(device: str, changes: dict[str, object]) -> None:
    config = settings(**changes)
    rank = config.workers - 1
    expected = states(HostSteps, config, rank=rank)
    found = states(DeviceSteps, config, torch.device(device), rank=rank)
    assert len(expected) > 2
    for (totals, state), (expected_totals, expected_state) in zip(found, expected, strict=True):
        assert totals == pytest.approx(expected_totals, rel=1e-4)
        difference_3 = np.linalg.norm(state - expected_state, axis=1)
        assert (difference_3 < 2e-3 * np.linalg.norm(expected_state, axis=1)).all()


@devices
def test_batch_without_a_measured_label_changes_nothing(device: str) -> None:
    reader = rows_in_memory()
    reader.arrays["labels"][:] = 255
    (totals, state), *_ = states(DeviceSteps, settings(), torch.device(device), reader=reader)
    assert totals == (0.0, 0.0, 4 * 128)
    np.testing.assert_array_equal(state[0], flatten(network(settings())).numpy())
    assert not state[1].any()


@devices
def test_frozen_parameters_and_their_moments_stay_as_they_are(device: str) -> None:
    *_, (_, state) = states(DeviceSteps, settings(), torch.device(device), rates=[(100, 200, 0.0), (300, 400, 0.5)])
    np.testing.assert_array_equal(state[0, 100:200], flatten(network(settings())).numpy()[100:200])
    for moment_P in state[1:]:
        assert not moment_P[100:200].any() and moment_P[300:400].any()


@pytest.mark.parametrize("kind", [HostSteps, DeviceSteps])
def test_gradient_whose_norm_overflows_leads_to_no_finite_numbers(
    kind: type[HostSteps] | type[DeviceSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused: a step that clips it to nothing would not be."""
    made = network

    def steep(config: ResolvedTrainConfig) -> TabularFastKAN:
        model = made(config)
        for parameter in filter(lambda each: each.requires_grad, model.parameters()):
            parameter.register_hook(lambda gradient: 1e25 * gradient)
        return model

    monkeypatch.setitem(globals(), "network", steep)
    # Native passes call no hooks.
    (_, state), *_ = states(kind, settings(kernel="recompute"))
    assert not np.isfinite(state[0]).any()


@pytest.mark.gpu
def test_steps_become_one_graph_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from dkan_core.training.compute import step_graph

    captured = states(DeviceSteps, settings(), torch.device("cuda"))
    monkeypatch.setattr(step_graph, "WARMUP_STEPS", 10**9)
    launched = states(DeviceSteps, settings(), torch.device("cuda"))
    for (totals, state), (expected_totals, expected_state) in zip(captured, launched, strict=True):
        assert totals == expected_totals
        np.testing.assert_array_equal(state[0], expected_state[0])


class KeptSteps(DeviceSteps):
    """Steps that can be looked at when they are taken."""

    made: ClassVar[list["KeptSteps"]]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made.append(self)

    def tensors(self) -> list[torch.Tensor]:
        """Return what stays where it is from step to step."""
        assert self.resident is not None
        holders = (self, self.optimizer, self.replica, self.resident)
        own = [each for holder in holders for each in vars(holder).values() if isinstance(each, torch.Tensor)]
        return [*own, *self.resident.arrays.values(), *self.replica.model.parameters(), *self.replica.model.buffers()]


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 200},
        {
            **{"accumulate": 2, "precision": "bf16", "clip_norm": None, "batch_size": 150},
            **{"pos_weight": 2.0, "label_weights": (0.5,)},
        },
    ],
)
def test_captured_step_does_what_a_launched_one_does(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the memory that it was captured with, and whatever the host says to it by that."""
    # Native passes compute on a CPU alone, and may keep what a GPU could not.
    config = settings(kernel="recompute", **changes)
    launched = states(DeviceSteps, config)
    graphs = record_graphs(monkeypatch)
    monkeypatch.setattr(KeptSteps, "made", [], raising=False)
    captured = states(KeptSteps, config)
    (graph,) = graphs
    # All but those before the capture and the last one of each epoch, which has fewer rows.
    steps = 2 * -(-ROWS // config.batch_size)
    short = 0 if ROWS % config.batch_size == 0 else 2
    assert graph.replays == steps - short - WARMUP_STEPS
    for (totals, state), (expected_totals, expected_state) in zip(captured, launched, strict=True):
        assert totals == expected_totals
        np.testing.assert_array_equal(state[0], expected_state[0])
    (taken,) = KeptSteps.made
    kept = {each.untyped_storage().data_ptr() for each in taken.tensors()}
    assert {*graph.outside} - kept <= {constants(config.label_weights, CPU).untyped_storage().data_ptr()}


def test_captured_step_is_none_for_another_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may have more rows, and comes where units are handed to whoever is free."""
    config = settings(kernel="recompute", workers=3, batch_size=100, sync_interval=5)
    launched = states(HostSteps, config, slices=(0, 2))
    graphs = record_graphs(monkeypatch)
    captured = states(DeviceSteps, config, slices=(0, 2))
    assert graphs[0].replays > 0
    assert [totals.weight for totals, _ in captured] == pytest.approx([totals.weight for totals, _ in launched])


def test_step_that_cannot_be_captured_is_launched(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(kernel="recompute", batch_size=250)
    launched = states(DeviceSteps, config)
    graphs = record_graphs(monkeypatch, failing)
    with caplog.at_level("WARNING"):
        found = states(DeviceSteps, config)
    assert [each.replays for each in graphs] == [0]
    assert "cannot be captured as a CUDA graph, and is launched kernel by kernel: operation not" in caplog.text
    for (totals, state), (expected_totals, expected_state) in zip(found, launched, strict=True):
        assert totals == expected_totals
        np.testing.assert_array_equal(state[0], expected_state[0])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_device_need_not_be_the_current_one() -> None:
    expected = states(DeviceSteps, settings(), torch.device("cuda:0"))
    found = states(DeviceSteps, settings(), torch.device("cuda:1"))
    for (_, state), (_, expected_state) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(state[0], expected_state[0])


def test_memory_that_ends_while_rows_are_copied_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crowded(ArraysReader):
        def gather(self, extents: Int64 | Sequence[tuple[int, int]], out: Arrays | None = None) -> Arrays:
            if np.array_equal(extents, [(512, ROWS)]):
                raise torch.cuda.OutOfMemoryError("another process has taken it")
            return super().gather(extents, out)

    reader = rows_in_memory()
    resident = states(DeviceSteps, settings(), reader=reader)
    monkeypatch.setattr(resident_rows, "CHUNK_BYTES", 512 * reader.row_bytes)
    with caplog.at_level("WARNING"):
        sent = states(DeviceSteps, settings(), reader=Crowded(reader.arrays))
    assert "cpu ran out of memory" in caplog.text
    for (_, state), (_, expected) in zip(sent, resident, strict=True):
        np.testing.assert_array_equal(state[0], expected[0])


def test_rows_are_counted_as_they_lie_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With lists of IDs, where all are as long as the longest one; they are stored without that."""

    class Compact(ArraysReader):
        row_bytes = 2

    reader = Compact({**rows_in_memory().arrays, "sparse": np.zeros((ROWS, 100), np.int32)})
    copied = sum(array.nbytes for array in reader.arrays.values())
    fits = []
    for rows in (ROWS * reader.row_bytes, copied):
        free = resident_rows.SPARE_BYTES + rows + ROWS * resident_rows.ORDER_BYTES
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        fits.append(resident_rows.fits_device(reader, torch.device("cuda")))
    assert fits == [False, True]
    chunks: list[None] = []
    monkeypatch.setattr(resident_rows, "CHUNK_BYTES", copied // 4)
    ResidentRows(reader, settings(), CPU, lambda: chunks.append(None))
    assert len(chunks) == 4


@pytest.mark.parametrize("ends_at", [0, 2, 9])
def test_rows_make_way_for_steps_that_need_their_memory(
    ends_at: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = states(DeviceSteps, settings())
    gather = ResidentRows.gather
    calls = itertools.count()

    def crowded(*arguments: Any) -> dict[str, torch.Tensor]:
        if next(calls) == ends_at:
            raise torch.cuda.OutOfMemoryError("no memory for a step")
        return gather(*arguments)

    monkeypatch.setattr(ResidentRows, "gather", crowded)
    with caplog.at_level("WARNING"):
        found = states(DeviceSteps, settings())
    assert "do not fit on cpu" in caplog.text and next(calls) == ends_at + 1
    for (totals, state), (expected_totals, expected_state) in zip(found, expected, strict=True):
        assert totals == expected_totals
        np.testing.assert_array_equal(state[0], expected_state[0])


@pytest.mark.gpu
def test_rows_that_do_not_fit_are_sent_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = states(DeviceSteps, settings(), torch.device("cuda"))
    monkeypatch.setattr(resident_rows, "fits_device", lambda reader, device: False)
    sent = states(DeviceSteps, settings(), torch.device("cuda"))
    for (_, state), (_, expected) in zip(sent, resident, strict=True):
        np.testing.assert_array_equal(state[0], expected[0])
