"""Three stages, each a loop over the parts of the plan.

``make test-image`` runs the pipeline in containers over a bucket; that the stages write what one process does is tested
in tests/components/test_parallel_preparation.py.
"""

from typing import Any

from pipelines.compiled import inputs_of, package_of
from pipelines.lint.documents import read_documents

PACKAGE = package_of("parallel-prepare")


def preparation() -> dict[str, Any]:
    """Return the tasks of the pipeline within the pipeline."""
    components = read_documents(PACKAGE)[0]["components"]
    tasks: dict[str, Any] = components["comp-fastkan-parallel-prepare-preparation"]["dag"]["tasks"]
    return tasks


def test_every_stage_is_a_loop_over_the_parts_that_waits_for_the_one_before() -> None:
    tasks = preparation()
    loops = [name for name, task in tasks.items() if "parameterIterator" in task]
    assert len(loops) == 3
    for name in loops:
        items = tasks[name]["parameterIterator"]["items"]["inputParameter"]
        assert items == "pipelinechannel--plan-preparation-Output"
    waits = {name: task.get("dependentTasks", []) for name, task in tasks.items()}
    assert waits[loops[0]] == ["plan-preparation"] and loops[0] in waits["fit-preparation"]
    assert "fit-preparation" in waits[loops[1]] and loops[1] in waits[loops[2]]
    assert loops[2] in waits["finish-preparation"] and "finish-preparation" in waits["finish-preparation-2"]


def test_nothing_that_writes_data_is_taken_from_an_earlier_run() -> None:
    """The stages see for themselves that nothing is left to do; the end that is cached hands on what is there."""
    cached = {name for name, task in preparation().items() if task.get("cachingOptions", {}).get("enableCache")}
    assert cached == {"finish-preparation-2"}


def test_data_must_lie_where_all_pods_reach_them() -> None:
    assert not inputs_of(PACKAGE)["prepared_uri"].get("isOptional")
