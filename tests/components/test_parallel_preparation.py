"""The components of a preparation by many, as one pipeline under kfp's local runner."""

import shutil
from pathlib import Path

import pytest
from kfp import dsl, local

from components.data_processing.finish_preparation import finish_preparation
from components.data_processing.fit_preparation import fit_preparation
from components.data_processing.plan_preparation import plan_preparation
from components.data_processing.prepare_part import prepare_part
from dkan_core import PrepareConfig, prepare
from dkan_core.data.format.manifest import open_prepared
from pipelines.pods import Settings
from pipelines.steps.prepare import parallel_preparation
from tests import warm_python
from tests.data.tables import contents, make_rows, replace_unnoticed, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:You may be attemping to run:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.* have no effect in the current local runner:UserWarning"),
]


@dsl.pipeline
def prepare_by_many(data_uri: str, prepared_uri: str, num_parts: int) -> dsl.Dataset:
    plan = plan_preparation(
        data_uri=data_uri, label="y", weight="row", prepared_uri=prepared_uri, num_parts=num_parts, seed=4
    )
    with dsl.ParallelFor(plan.output, parallelism=2) as part:
        surveyed = prepare_part(prepared_uri=prepared_uri, stage="survey", part=part)
    fitted = fit_preparation(prepared_uri=prepared_uri).after(surveyed)
    with dsl.ParallelFor(plan.output, parallelism=2) as part:
        encoded = prepare_part(prepared_uri=prepared_uri, stage="encode", part=part).after(fitted)
    with dsl.ParallelFor(plan.output, parallelism=2) as part:
        assembled = prepare_part(prepared_uri=prepared_uri, stage="assemble", part=part).after(encoded)
    return finish_preparation(prepared_uri=prepared_uri).after(assembled).outputs["prepared"]


@pytest.fixture(autouse=True)
def steps_as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    # kfp has print indent a step's lines, and where steps run at the same time it leaves it so.
    monkeypatch.setattr("builtins.print", print)
    monkeypatch.setattr("sys.executable", warm_python.executable())


def test_pipeline_writes_what_prepare_does(tmp_path: Path) -> None:
    write(make_rows(), tmp_path / "raw", files=2, row_group_size=200)
    alone = prepare(tmp_path / "raw", tmp_path / "alone", PrepareConfig(label=("y",), weight="row", seed=4))
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "artifacts"))
    together = tmp_path / "together"
    run = prepare_by_many(data_uri=str(tmp_path / "raw"), prepared_uri=str(together), num_parts=3)
    assert contents(together) == contents(tmp_path / "alone")
    artifact = run.output
    assert artifact.metadata["fingerprint"] == alone.fingerprint
    assert artifact.metadata["uri"] == str(together)
    assert [path.name for path in Path(artifact.path).iterdir()] == ["manifest.json"]


def test_cache_gives_the_same_artifact_for_the_same_data_and_keeps_no_step_from_writing_them(tmp_path: Path) -> None:
    """The key of training has the artifact; what it refers to has to be there whatever happened to the folder."""
    (source,) = write(make_rows(), tmp_path / "raw")
    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(tmp_path / "artifacts"),
        enable_caching=True,
        cache_root=str(tmp_path / "cache"),
    )
    preparation, place = parallel_preparation(Settings(), "flights"), tmp_path / "prepared"

    def run(**form: bool) -> tuple[str, str]:
        """Return where the artifact lies, and the fingerprint of the data that it refers to."""
        where = {"data_uri": str(tmp_path / "raw"), "prepared_uri": str(place)}
        artifact = preparation(**where, label="y", num_parts=1, **form).output
        with open_prepared(artifact.path) as (_, manifest):
            return artifact.uri, manifest.fingerprint

    first = run()
    assert run() == first, "unchanged"
    assert run(overwrite=True) == first, "built again, the same to the byte"
    shutil.rmtree(place)
    assert run() == first, "deleted"
    replace_unnoticed(source)
    other = run(overwrite=True)
    assert other[0] != first[0] and other[1] != first[1]
    assert run() == other
