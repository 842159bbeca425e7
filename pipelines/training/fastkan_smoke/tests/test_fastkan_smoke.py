"""The smoke test needs nothing; ``make test-image`` runs it in containers, where it passes its own gate."""

from pipelines.compiled import inputs_of, package_of
from pipelines.lint.documents import read_documents

PACKAGE = package_of("smoke")


def test_form_needs_nothing() -> None:
    assert all(field.get("isOptional") for field in inputs_of(PACKAGE).values())


def test_data_come_with_the_image_and_a_bad_model_is_not_published() -> None:
    tasks = read_documents(PACKAGE)[0]["root"]["dag"]["tasks"]
    source = tasks["prepare-parquet"]["inputs"]["artifacts"]["source"]["taskOutputArtifact"]
    assert source == {"outputArtifactKey": "source", "producerTask": "sample-parquet"}
    assert inputs_of(PACKAGE)["min_average_precision"]["defaultValue"] == 0.9
    assert "approve-model" in tasks["condition-1"]["dependentTasks"]
