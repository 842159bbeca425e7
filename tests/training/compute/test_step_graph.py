"""When a step becomes a graph, when it does not and why, and when the graph is given up."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dkan_core.data.loading.loader import SliceBatches
from dkan_core.training.collectives.on_device import GradientExchange
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.step_exchange import NoExchange
from dkan_core.training.compute.step_graph import WARMUP_STEPS, StepGraph
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.utils import gpu
from tests.training.compute.recorded_graph import STREAMS, failing, record_graphs
from tests.training.compute.test_device_steps import CPU, settings, states

MORE = 3
"""Steps after those before the capture."""


class Step:
    """Adds 1 to a number; ``launches`` tells how often it did so without a graph, or for one."""

    def __init__(self) -> None:
        self.count = torch.zeros(())
        self.launches = 0

    def __call__(self) -> None:
        self.launches += 1
        self.count += 1


def test_released_graph_is_reset_and_steps_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = record_graphs(monkeypatch)
    step, graph = Step(), StepGraph(CPU)
    for _ in range(WARMUP_STEPS + MORE):
        graph.run(step, 8)
    (captured,) = made
    assert captured.replays == MORE and captured.operations
    graph.release()
    assert not captured.operations
    before = step.launches
    graph.run(step, 8)
    assert step.launches == before + 1 and len(made) == 1
    assert step.count == WARMUP_STEPS + MORE + 1


def test_step_is_captured_where_slices_have_two_sizes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    made = record_graphs(monkeypatch)
    step, graph = Step(), StepGraph(CPU)
    for index in range(2 * (WARMUP_STEPS + MORE)):
        graph.run(step, 8 + index % 2)
    assert [each.replays for each in made] == [MORE]
    assert step.count == 2 * (WARMUP_STEPS + MORE)


@pytest.mark.parametrize("here", [True, False])
def test_step_that_one_rank_cannot_capture_is_launched_by_all(
    here: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes: list[bool] = []

    def all_agree(agreed: bool) -> bool:
        votes.append(agreed)
        return False

    made = record_graphs(monkeypatch, failing) if here else record_graphs(monkeypatch)
    step, graph = Step(), StepGraph(CPU, all_agree)
    with caplog.at_level("WARNING"):
        for _ in range(WARMUP_STEPS + MORE):
            graph.run(step, 8)
    assert votes == [not here] and [each.replays for each in made] == [0]
    reason = "operation not permitted when stream is capturing" if here else "another rank cannot capture it"
    assert f"cannot be captured as a CUDA graph, and is launched kernel by kernel: {reason}" in caplog.text
    assert step.count == WARMUP_STEPS + MORE
    assert STREAMS.current == "default"


def test_step_is_not_launched_on_a_gpu_that_computes_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_failed(device: torch.device) -> None:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    record_graphs(monkeypatch, failing)
    monkeypatch.setattr(gpu, "check_works", has_failed)
    step, graph = Step(), StepGraph(CPU)
    for _ in range(WARMUP_STEPS - 1):
        graph.run(step, 8)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        graph.run(step, 8)


class Peer(ProcessGroup):
    """A second rank that has the same numbers, or 1."""

    def __init__(self, *, agrees: bool = True) -> None:
        self.rank, self.size, self.device, self.agrees = 0, 2, CPU, agrees

    def all_reduce(self, buffer_N: torch.Tensor) -> None:
        buffer_N += buffer_N.clone() if self.agrees else 1

    def wait_for_all(self, record_activity: Callable[[], None]) -> None:
        pass


@pytest.mark.parametrize(
    ("mixing", "agrees", "reason"),
    [("0", True, "NCCL_GRAPH_MIXING_SUPPORT is 0"), ("1", False, "another rank's cannot be")],
)
def test_reason_why_steps_are_no_graph_is_logged(
    mixing: str, agrees: bool, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Steps(DeviceSteps):
        def __init__(self, replica: Replica, batches: SliceBatches, rules: UpdateRules) -> None:
            exchange = GradientExchange(Peer(agrees=agrees), replica, rules)
            super().__init__(replica, batches, rules, exchange=exchange)

    monkeypatch.setenv("NCCL_GRAPH_MIXING_SUPPORT", mixing)
    made = record_graphs(monkeypatch)
    with caplog.at_level("INFO"):
        states(Steps, settings(kernel="recompute", batch_size=250))
    assert f"captured as a CUDA graph and are launched kernel by kernel: {reason}" in caplog.text
    assert not made


def test_nothing_is_read_before_the_ranks_are_known_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading waits without a limit; ``wait_for`` does not."""
    recorded: list[object] = []
    waited_for: list[object] = []

    class Event:
        def record(self) -> None:
            recorded.append(self)

    class Patient(NoExchange):
        def wait_for(self, event: torch.cuda.Event) -> None:
            waited_for.append(event)

    class Steps(DeviceSteps):
        def __init__(self, replica: Replica, batches: SliceBatches, rules: UpdateRules) -> None:
            super().__init__(replica, batches, rules, exchange=Patient(replica, rules.config))
            self.device = torch.device("cuda")

        def take_rounds(self, *arguments: Any) -> LossTotals:
            totals = super().take_rounds(*arguments)
            assert waited_for == recorded
            return totals

    monkeypatch.setattr(torch.cuda, "Event", Event)
    states(Steps, settings(kernel="recompute", batch_size=250))
    assert len(recorded) > 4
