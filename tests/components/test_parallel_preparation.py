"""The components of a preparation by many, as one pipeline under kfp's local runner."""

from pathlib import Path

import pytest
from kfp import dsl, local

from components.data_processing.finish_preparation import finish_preparation
from components.data_processing.fit_preparation import fit_preparation
from components.data_processing.plan_preparation import plan_preparation
from components.data_processing.prepare_part import prepare_part
from dkan_core import PrepareConfig, prepare
from tests import warm_python
from tests.data.tables import contents, make_rows, write


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You may be attemping to run:RuntimeWarning")
def test_pipeline_writes_what_prepare_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root))
    # kfp has print indent a step's lines, and where steps run at the same time it leaves it so.
    monkeypatch.setattr("builtins.print", print)
    write(make_rows(), tmp_path / "raw", files=2, row_group_size=200)
    alone = prepare(tmp_path / "raw", tmp_path / "alone", PrepareConfig(label=("y",), weight="row", seed=4))
    monkeypatch.setattr("sys.executable", warm_python.executable())
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "artifacts"))
    together = tmp_path / "together"
    run = prepare_by_many(data_uri=str(tmp_path / "raw"), prepared_uri=str(together), num_parts=3)
    assert contents(together) == contents(tmp_path / "alone")
    artifact = run.output
    assert artifact.metadata["fingerprint"] == alone.fingerprint
    assert artifact.metadata["uri"] == str(together)
    assert [path.name for path in Path(artifact.path).iterdir()] == ["manifest.json"]
