"""What several test files share: small real data, made once, and a small disk.

torch and scikit-learn are imported where they are needed: the process that hands out the tests needs neither.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings

import dkan_core
from docs.chromium import Chromium, chromium
from tests import warm
from tests.certificates import make_certificate
from tests.s3 import s3, s3_endpoint  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from dkan_core import TrainResult

ROOT = Path(__file__).parents[1]

MEANS = 10
"""The first columns of the breast cancer set; the pairs of all 30 are most of what a small training would cost."""

SLOW_SECONDS = 1800
"""A hanging test ends after so long; the slowest takes a minute or two on an idle machine."""

# An example takes as long as the machine is busy: by default, one of more than 0.2 s fails.
settings.register_profile("dkan", deadline=None)
settings.load_profile("dkan")


@pytest.fixture(scope="session", autouse=True)
def warm_fork_servers() -> Iterator[None]:
    """Fork servers begin with their imports done: without that, they are most of what a small run costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkan_core.training.launcher.fork_server_client.launch_fork_server", warm.launch_fork_server)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the means of scikit-learn's breast cancer set as Parquet, with a string column and some nulls."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    rng = np.random.default_rng(0)
    columns = {}
    for index, name in enumerate(data.feature_names[:MEANS]):
        missing = rng.random(len(data.target)) < 0.05 if index < 3 else None
        columns[str(name).replace(" ", "_")] = pa.array(data.data[:, index], mask=missing)
    columns["site"] = pa.array(rng.choice(np.array(["left", "right", None]), len(data.target)).tolist(), pa.string())
    columns["label"] = pa.array(data.target.astype(np.int8))
    path = tmp_path_factory.mktemp("source") / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


@pytest.fixture(scope="session")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare ``source``."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    dkan_core.prepare(source, folder, dkan_core.PrepareConfig(label=("label",)))
    return folder


@pytest.fixture(scope="session")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> "TrainResult":
    """Train a small model on ``prepared``; the run's folder is the parent of its ``model``."""
    config = dkan_core.TrainConfig(
        blend=False, epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02
    )
    return dkan_core.train(prepared, tmp_path_factory.mktemp("run") / "run", config)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make the key and the certificate of a server on this machine."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser of the module's own, with an empty profile."""
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with room for 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu, with the reason shown, where there is none; give those marked slow time on any machine."""
    import torch

    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
