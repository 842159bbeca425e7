"""Which folders scores may be written to: none that a second call would read as rows; plans of earlier versions."""

import json
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, OutputError, TrainResult, complete_scoring, plan_scoring, score_part


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    """Source files, and beside them a link to their folder."""
    for name in ("rows/a.parquet", "rows/day=2/b.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pq.read_table(source).slice(0, 40), tmp_path / name)
    (tmp_path / "linked").symlink_to(tmp_path / "rows")
    return tmp_path / "rows"


@pytest.mark.parametrize("named", ["", "*", "**/*.parquet", "*/b.parquet", "../linked", "../linked/*"])
def test_scores_among_the_sources_are_refused(named: str, trained: TrainResult, folder: Path) -> None:
    with pytest.raises(OutputError, match=r"lies in a folder of sources \(.*\); choose a folder outside of it"):
        plan_scoring(trained.model, str(folder / named), folder / "scores")
    assert not (folder / "scores").exists()


@pytest.mark.parametrize(("named", "out"), [("a.parquet", "scores"), ("day=*", "scores"), ("", "_scores")])
def test_scores_beside_the_sources_are_no_sources(named: str, out: str, trained: TrainResult, folder: Path) -> None:
    for _ in range(2):
        (part,) = plan_scoring(trained.model, str(folder / named), folder / out, parts=1)
        assert score_part(folder / out, part) == (40 if named else 80)
        complete_scoring(folder / out)


def test_remote_scores_among_the_sources_are_refused(trained: TrainResult, folder: Path) -> None:
    uri = f"memory://{folder.parent.name}"
    fsspec.filesystem("memory").put(f"{folder}/", f"/{folder.parent.name}/", recursive=True)
    for named in (uri, f"{uri}/*"):
        with pytest.raises(OutputError, match="lies in a folder of sources"):
            plan_scoring(trained.model, named, f"{uri}/scores")
    assert plan_scoring(trained.model, uri, f"{uri}-scores", parts=1) == [0]


def test_plan_of_an_earlier_version_is_named_and_made_again(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    """0.2.0 noted no schema of the scores; nothing of what its parts left is taken."""
    out = tmp_path / "out"
    plan_scoring(trained.model, source, out)
    score_part(out, 0)
    scored = (out / source.name).stat().st_mtime_ns
    file = out / ".work" / "plan.json"
    file.write_text(
        json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != "arrow_schema"})
    )
    with pytest.raises(DataError, match="is of an earlier version of dkan; call plan_scoring again"):
        score_part(out, 0)
    with pytest.raises(OutputError, match="another model or other settings; pass overwrite=True"):
        plan_scoring(trained.model, source, out, columns=("site",))
    for part in plan_scoring(trained.model, source, out):
        score_part(out, part)
    complete_scoring(out)
    assert (out / source.name).stat().st_mtime_ns > scored
