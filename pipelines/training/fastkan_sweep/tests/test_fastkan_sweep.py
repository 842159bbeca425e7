"""A training run for each entry, then the best; ``make test-image`` runs it in containers."""

from typing import Any

from pipelines.compiled import inputs_of, package_of
from pipelines.lint.documents import read_documents

PACKAGE = package_of("sweep")


def runs() -> dict[str, Any]:
    """Return the tasks of the pipeline within the pipeline."""
    tasks: dict[str, Any] = read_documents(PACKAGE)[0]["components"]["comp-fastkan-sweep-runs"]["dag"]["tasks"]
    return tasks


def test_an_entry_is_a_run_and_all_are_chosen_from() -> None:
    tasks = runs()
    (loop,) = [name for name, task in tasks.items() if "parameterIterator" in task]
    assert tasks[loop]["parameterIterator"]["items"]["inputParameter"] == "pipelinechannel--sweep"
    chosen_from = tasks["choose-best-run"]["inputs"]["artifacts"]["models"]["taskOutputArtifact"]
    assert chosen_from["producerTask"] == loop


def test_entries_are_objects_of_settings() -> None:
    inputs = inputs_of(PACKAGE)
    assert all(isinstance(entry, dict) for entry in inputs["sweep"]["defaultValue"])
    assert "settings" not in inputs, "an entry is what settings are elsewhere"
