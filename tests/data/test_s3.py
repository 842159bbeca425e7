"""The data commands against a real S3 server."""

import hashlib
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest

from dkan_core import (
    DataError,
    OutputError,
    PrepareConfig,
    TrainResult,
    fingerprint_sources,
    finish_preparation,
    fit_preparation,
    plan_preparation,
    predict,
    prepare,
    prepare_part,
)
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.utils.storage.remote import local_copy
from tests import warm
from tests.data.tables import contents

pytestmark = pytest.mark.s3
CONFIG = PrepareConfig(label=("label",))


@pytest.fixture
def uploaded(s3: str, source: Path) -> str:
    fsspec.filesystem("s3").put_file(str(source), f"{s3}/raw/rows.parquet")
    return f"{s3}/raw"


def listing(uri: str) -> set[str]:
    fs = fsspec.filesystem("s3")
    fs.invalidate_cache()
    return {name.removeprefix(uri.removeprefix("s3://") + "/") for name in fs.find(uri)}


def test_prepared_data_on_s3_equal_those_on_disk(s3: str, uploaded: str, prepared: Path) -> None:
    remote = prepare(uploaded, f"{s3}/out", CONFIG)
    assert remote.fingerprint == read_manifest(prepared).fingerprint
    assert remote.sources[0].path == f"{uploaded}/rows.parquet"
    assert remote.sources[0].modified
    with local_copy(f"{s3}/out") as folder:
        manifest = read_manifest(folder)
        for split, info in manifest.splits.items():
            with open_split(folder, manifest, split) as reader:
                assert sum(len(batch["labels"]) for batch in all_batches(reader, 100)) == info.rows
            for shard in info.shards:
                assert hashlib.sha256((folder / shard.path).read_bytes()).hexdigest() == shard.sha256


def test_prepared_by_parts_on_s3_equals_prepared_at_once(s3: str, uploaded: str) -> None:
    prepare(uploaded, f"{s3}/alone", CONFIG)
    out = f"{s3}/together"
    for _ in ("first", "again"):
        planned = plan_preparation(uploaded, out, CONFIG, parts=3)
        assert planned == [0, 1, 2]
        for part in planned[::-1]:
            prepare_part(out, "survey", part)
        fit_preparation(out)
        for stage in ("encode", "assemble"):
            for part in [*planned, 0]:
                prepare_part(out, stage, part)
        assert finish_preparation(out) == finish_preparation(out)
        with local_copy(f"{s3}/alone") as alone, local_copy(out) as together:
            assert contents(together) == contents(alone)


def test_place_on_s3_that_is_taken_is_refused(s3: str, uploaded: str) -> None:
    fsspec.filesystem("s3").pipe_file(f"{s3}/mine/train/rows.parquet", b"mine")
    with pytest.raises(OutputError, match="which this command did not write"):
        plan_preparation(uploaded, f"{s3}/mine", CONFIG, parts=2, overwrite=True)
    plan_preparation(uploaded, f"{s3}/out", CONFIG, parts=2)
    with pytest.raises(OutputError, match="in progress"):
        plan_preparation(uploaded, f"{s3}/out", CONFIG, parts=3)
    with pytest.raises(DataError, match="parts 0, 1 of 2 not surveyed"):
        fit_preparation(f"{s3}/out")


def test_earlier_result_is_replaced_whole_and_only_when_asked(s3: str, uploaded: str) -> None:
    prepare(uploaded, f"{s3}/out", CONFIG)
    with pytest.raises(OutputError, match="--overwrite"):
        prepare(uploaded, f"{s3}/out", CONFIG)
    fsspec.filesystem("s3").pipe_file(f"{s3}/out/train/left-over.safetensors", b"old")
    again = prepare(uploaded, f"{s3}/out", CONFIG, overwrite=True)
    shards = {shard.path for info in again.splits.values() for shard in info.shards}
    assert listing(f"{s3}/out") == {"manifest.json", *shards}


def test_what_a_killed_upload_left_is_replaced(s3: str, uploaded: str) -> None:
    fs = fsspec.filesystem("s3")
    fs.pipe_file(f"{s3}/out/.partial", b"")
    fs.pipe_file(f"{s3}/out/train/00000-of-00009.safetensors", b"half")
    prepare(uploaded, f"{s3}/out", CONFIG)
    assert "manifest.json" in listing(f"{s3}/out")
    assert "train/00000-of-00009.safetensors" not in listing(f"{s3}/out")


def test_what_a_killed_replacement_left_is_removed(s3: str, uploaded: str) -> None:
    fs = fsspec.filesystem("s3")
    for name in (
        ".partial/manifest.json",
        ".partial/train/00000-of-00001.safetensors",
        "train/00000-of-00009.safetensors",
    ):
        fs.pipe_file(f"{s3}/out/{name}", b"whole")
    prepare(uploaded, f"{s3}/out", CONFIG)
    assert "manifest.json" in listing(f"{s3}/out")
    assert not any(name.startswith(".partial") for name in listing(f"{s3}/out"))


def add_markers(*folders: str) -> None:
    """Make the empty objects by which consoles create folders."""
    for folder in folders:
        bucket, _, key = folder.removeprefix("s3://").partition("/")
        fsspec.filesystem("s3").call_s3("put_object", Bucket=bucket, Key=f"{key}/", Body=b"")


def test_folder_markers_are_no_files(
    s3: str, uploaded: str, trained: TrainResult, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec.filesystem("s3").put(f"{trained.model}/", f"{s3}/model/", recursive=True)
    add_markers(uploaded, f"{s3}/out", f"{s3}/model")
    for overwrite in (False, True):
        prepare(uploaded, f"{s3}/out", CONFIG, overwrite=overwrite)
        add_markers(f"{s3}/out/train")
    prepare(f"{s3}/raw*", f"{s3}/again", CONFIG)
    predict(f"{s3}/model", uploaded, f"{s3}/scores.parquet")
    assert "skipped" not in caplog.text
    fingerprint_sources(uploaded, model=f"{s3}/model")


def test_brackets_in_the_name_of_a_folder_are_no_pattern(s3: str, uploaded: str) -> None:
    fs = fsspec.filesystem("s3")
    fs.pipe_file(f"{s3}/out1/train/kept", b"of somebody else")
    fs.pipe_file(f"{s3}/out[1]/.partial", b"")
    fs.pipe_file(f"{s3}/out[1]/train/00000-of-00009.safetensors", b"half")
    add_markers(f"{s3}/out[1]/train")
    prepare(uploaded, f"{s3}/out[1]", CONFIG)
    assert listing(f"{s3}/out1") == {"train/kept"}
    assert "train/00000-of-00009.safetensors" not in listing(f"{s3}/out[1]")


def test_folder_of_somebody_else_is_refused(s3: str, uploaded: str) -> None:
    fsspec.filesystem("s3").pipe_file(f"{s3}/mine/train/rows.parquet", b"mine")
    with pytest.raises(OutputError, match="which this command did not write"):
        prepare(uploaded, f"{s3}/mine", CONFIG, overwrite=True)
    assert listing(f"{s3}/mine") == {"train/rows.parquet"}


def test_predictions_on_s3_equal_those_on_disk(s3: str, uploaded: str, trained: TrainResult, tmp_path: Path) -> None:
    fsspec.filesystem("s3").put(f"{trained.model}/", f"{s3}/model/", recursive=True)
    predict(f"{s3}/model", uploaded, f"{s3}/scores.parquet")
    predict(trained.model, uploaded, tmp_path / "scores.parquet")
    with fsspec.open(f"{s3}/scores.parquet") as file:
        assert pq.read_table(file).equals(pq.read_table(tmp_path / "scores.parquet"))


def test_absent_bucket_is_named(s3: str) -> None:
    with pytest.raises(DataError, match="s3://no-such-bucket/raw"):
        prepare("s3://no-such-bucket/raw", f"{s3}/out", CONFIG)


@pytest.mark.parametrize(("key", "value"), [("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ACCESS_KEY_ID", "nobody")])
def test_wrong_credentials_are_a_clear_error(uploaded: str, source: Path, tmp_path: Path, key: str, value: str) -> None:
    for src, out in ((uploaded, str(tmp_path / "out")), (str(source), f"{uploaded}-out")):
        done = warm.server().run(["prepare", src, "--out", out, "--label", "label"], None, **{key: value})
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: s3://")
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
