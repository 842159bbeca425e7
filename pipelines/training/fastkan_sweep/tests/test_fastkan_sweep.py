"""A sweep run on this machine: the best entry by validation goes on, and a gate that it fails keeps it unpublished."""

import json
import subprocess
import sys
from pathlib import Path

from dkan_core import write_sample

ROOT = Path(__file__).parents[4]


def test_best_entry_goes_on_and_the_gate_holds(tmp_path: Path) -> None:
    write_sample(tmp_path / "raw" / "tumours.parquet")
    settings = {
        "data_uri": str(tmp_path / "raw"),
        "label": "malignant",
        "sweep": [{"learning_rate": 1e-5, "epochs": 1}, {"learning_rate": 0.01, "epochs": 5.0}],
        "hidden": "8",
        "members": 1,
        "prepared_uri": str(tmp_path / "prepared"),
        "checkpoint_uri": str(tmp_path / "checkpoints"),
        "publish_uri": str(tmp_path / "best"),
        "min_average_precision": 1.1,
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pipelines", "run", "--pipeline", "sweep", "--out", str(tmp_path / "out")]
    process = subprocess.run(
        [*command, "--param", str(tmp_path / "settings.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert ", not approved" in process.stdout and not (tmp_path / "best").exists()
    (chosen,) = (tmp_path / "out").glob("*/choose-best-run/model/metrics.json")
    assert json.loads(chosen.read_text())["training"]["learning_rate"] == 0.01
    (manifest,) = (tmp_path / "out").glob("*/prepare-parquet/prepared/*")
    assert json.loads(manifest.read_text())["location"].startswith(str(tmp_path / "prepared"))
    assert len(list((tmp_path / "checkpoints" / "fastkan-sweep").iterdir())) == 2, "runs keep out of each other's way"
