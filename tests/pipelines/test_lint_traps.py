"""What the SDK compiles without a word and the linter finds."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
from kfp import dsl, kubernetes

from pipelines.lint import lint_documents
from tests.pipelines.specimens import IMAGE, choose_from, compiled, count, learn_on_gpus, make, say


def trap(body: Callable[..., Any], path: Path) -> list[str]:
    """Lint what the SDK makes of a pipeline without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lint_documents(compiled(dsl.pipeline(name="trap")(body), path))


def test_resource_in_a_condition_that_the_sdk_loses(tmp_path: Path) -> None:
    def pipeline(num_gpus: str = "1", search: str = "yes") -> None:
        with dsl.If(search == "yes"):
            say(text="a").set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(num_gpus)

    assert trap(pipeline, tmp_path / "pipeline.yaml") == [
        "comp-condition-1: task say: input 'pipelinechannel--num_gpus' refers to parameter "
        "'pipelinechannel--num_gpus', which comp-condition-1 does not have"
    ]


def test_gpu_count_that_is_a_number_never_reaches_the_pod(tmp_path: Path) -> None:
    def pipeline(num_gpus: int = 1) -> None:
        say(text="a").set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(num_gpus)

    assert trap(pipeline, tmp_path / "pipeline.yaml") == [
        "executor exec-say, run by task say of root: accelerator.resourceCount is parameter "
        "'pipelinechannel--num_gpus', which is NUMBER_INTEGER: only a STRING reaches the pod"
    ]


def test_selector_that_is_a_list(tmp_path: Path) -> None:
    def pipeline(where: list = ["gpu"]) -> None:  # noqa: B006
        kubernetes.add_node_selector_json(say(text="a"), where)

    assert any("takes a STRUCT, but is given a LIST" in found for found in trap(pipeline, tmp_path / "pipeline.yaml"))


def test_items_whose_type_the_sdk_guesses(tmp_path: Path) -> None:
    def pipeline(numbers: list = [1]) -> None:  # noqa: B006
        with dsl.ParallelFor(numbers) as number:
            count(number=number)

    assert any("is NUMBER_INTEGER, but is given" in found for found in trap(pipeline, tmp_path / "pipeline.yaml"))


def test_list_in_a_text_that_the_sdk_leaves_as_it_is(tmp_path: Path) -> None:
    def pipeline() -> None:
        say(text=f"one of {make().outputs['Output']}")

    (finding,) = trap(pipeline, tmp_path / "pipeline.yaml")
    assert "input 'text' refers to '{{channel:task=make;name=Output;" in finding


def test_environment_from_a_parameter_that_the_sdk_leaves_as_it_is(tmp_path: Path) -> None:
    def pipeline(mode: str = "fast") -> None:
        say(text="a").set_env_variable("MODE", f"{mode}")

    (finding,) = trap(pipeline, tmp_path / "pipeline.yaml")
    assert "container.env[0].value holds {{channel:task=;name=mode;" in finding


def test_list_used_inside_the_loop_over_it(tmp_path: Path) -> None:
    def pipeline() -> None:
        names = make().outputs["Output"]
        with dsl.ParallelFor(names) as name:
            say(text=name)
            choose_from(names=names)

    assert any("the list that the loop comp-for-loop-" in found for found in trap(pipeline, tmp_path / "pipeline.yaml"))


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def read_either(data: dsl.Input[dsl.Dataset] | None = None) -> str:
    return "none" if data is None else data.path


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def read_optional(data: Optional[dsl.Input[dsl.Dataset]] = None) -> str:  # noqa: UP045 - the older way to write it
    return "none" if data is None else data.path


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def read_default(note: Optional[str] = None, data: dsl.Input[dsl.Dataset] = None) -> str:  # noqa: UP045
    return "none" if data is None else data.path


@pytest.mark.parametrize("component", [read_either, read_optional])
def test_artifact_of_a_union_that_dies_on_a_cluster(component: Any, tmp_path: Path) -> None:
    def pipeline() -> None:
        component(data=make().outputs["data"])

    (finding,) = trap(pipeline, tmp_path / "pipeline.yaml")
    assert "artifact 'data' is annotated" in finding and "a cluster cannot make a union" in finding


def test_artifact_that_is_optional_by_its_default(tmp_path: Path) -> None:
    def pipeline() -> None:
        read_default(data=make().outputs["data"])
        read_default()

    assert trap(pipeline, tmp_path / "pipeline.yaml") == []


def test_settings_in_a_pipeline_of_their_own_reach_the_task_wherever_it_stands(tmp_path: Path) -> None:
    def pipeline(
        num_gpus: str = "1",
        secret: str = "storage",
        where: dict = {"pool": "gpu"},  # noqa: B006
        taints: list = [],  # noqa: B006
    ) -> None:
        made = make()
        with dsl.ExitHandler(say(text="bye")), dsl.If(num_gpus != "0"), dsl.ParallelFor(["a", "b"]) as name:
            learn_on_gpus(
                data=made.outputs["data"], name=name, num_gpus=num_gpus, memory="1Gi", secret=secret, claim="data",
                where=where, taints=taints,
            )  # fmt: skip

    assert trap(pipeline, tmp_path / "pipeline.yaml") == []
