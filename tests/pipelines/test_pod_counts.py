"""How many pods a run takes, counted in its compiled file, and what the READMEs say of it.

In the versions that are supported, a step is a pod that works and one that Kubeflow calls its driver; a graph of steps
has a driver, and so have a loop and each of its rounds.
"""

import re
from typing import Any, NamedTuple

import pytest

from dkan_core.data.preparation.parallel import MAX_PARTS
from pipelines.compiled import PIPELINES, package_of
from pipelines.lint.documents import read_documents
from pipelines.versions import VERSIONS


class Pods(NamedTuple):
    working: int
    drivers: int

    @property
    def total(self) -> int:
        return self.working + self.drivers


def count_pods(name: str, rounds: int) -> Pods:
    """Count the pods of a run in which every condition holds and every loop has that many rounds."""
    spec = read_documents(package_of(name))[0]
    components: dict[str, dict[str, Any]] = {**spec["components"], "root": spec["root"]}

    def inside(component: str) -> Pods:
        if "dag" not in components[component]:
            return Pods(1, 1)
        working, drivers = 0, 1
        for task in components[component]["dag"]["tasks"].values():
            pods = inside(task["componentRef"]["name"])
            loops = "parameterIterator" in task
            working += pods.working * (rounds if loops else 1)
            drivers += 1 + pods.drivers * rounds if loops else pods.drivers
        return Pods(working, drivers)

    return inside("root")


@pytest.mark.parametrize(("name", "pods"), [("parallel-prepare", 9), ("batch-scoring", 3), ("sweep", 3)])
def test_each_round_of_a_loop_is_a_pod_and_two_drivers(name: str, pods: int) -> None:
    one, two = count_pods(name, 1), count_pods(name, 2)
    assert two.total - one.total == pods
    assert two.drivers - one.drivers == pods * 2 / 3


@pytest.mark.parametrize("name", sorted(set(PIPELINES) - {"parallel-prepare", "batch-scoring", "sweep"}))
def test_other_pipelines_have_no_loop(name: str) -> None:
    assert count_pods(name, 1) == count_pods(name, 100)


def test_readme_says_how_many_pods_the_parts_take() -> None:
    readme = (package_of("parallel-prepare").parent / "README.md").read_text()
    assert f"With Kubeflow Pipelines {VERSIONS[0]} to {VERSIONS[-1]} each stage is" in readme
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \|$", readme, re.MULTILINE)
    assert [int(parts) for parts, _, _ in rows] == [1, 8, MAX_PARTS]
    for parts, total, drivers in rows:
        pods = count_pods("parallel-prepare", int(parts))
        assert (pods.total, pods.drivers) == (int(total), int(drivers))


def test_parts_are_prepared_some_at_a_time() -> None:
    components = read_documents(package_of("parallel-prepare"))[0]["components"]
    tasks = components["comp-fastkan-parallel-prepare-preparation"]["dag"]["tasks"].values()
    limits = [task["iteratorPolicy"]["parallelismLimit"] for task in tasks if "parameterIterator" in task]
    assert limits == [16, 16, 16]
