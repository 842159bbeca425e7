"""Preparation by many, run on this machine: what comes out is what one process prepares."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from dkan_core import PrepareConfig, prepare, write_sample

ROOT = Path(__file__).parents[4]


def test_many_pods_prepare_what_one_does(tmp_path: Path) -> None:
    write_sample(tmp_path / "sample.parquet")
    (tmp_path / "raw").mkdir()
    pq.write_table(pq.read_table(tmp_path / "sample.parquet"), tmp_path / "raw" / "rows.parquet", row_group_size=200)
    alone = prepare(tmp_path / "raw", tmp_path / "alone", PrepareConfig(label=("malignant",)))
    command = [
        sys.executable,
        "-m",
        "pipelines",
        "run",
        "--pipeline",
        "parallel-prepare",
        "--out",
        str(tmp_path / "out"),
    ]
    for parameter in (
        f"data_uri={tmp_path / 'raw'}", "label=malignant", f"prepared_uri={tmp_path / 'shared'}", "num_parts=3",
        "epochs=1", "hidden=4", "members=1",
    ):  # fmt: skip
        command += ["--param", parameter]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert len(list((tmp_path / "out").glob("*/for-loop-*-iteration-*"))) == 3 * 3, "three parts, three stages"
    (folder,) = (tmp_path / "shared").iterdir()
    assert json.loads((folder / "manifest.json").read_text())["fingerprint"] == alone.fingerprint
    shards = sorted(path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("*.safetensors"))
    assert shards and all((folder / path).read_bytes() == (tmp_path / "alone" / path).read_bytes() for path in shards)
