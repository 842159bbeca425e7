"""An engine, a base and the image for the tests of this folder, and what came of them as lines of pytest's summary."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.image.base import ROOT, base_image
from tests.image.build import Image, build_image, can_build_cpu
from tests.image.engine import NoEngineError, engine

ROWS = 6000
LINES = pytest.StashKey[list[str]]()


def report(config: pytest.Config, line: str) -> None:
    """Show a line in the summary."""
    config.stash.setdefault(LINES, []).append(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(LINES, [])
    if lines:
        terminalreporter.section("image")
        for line in lines:
            terminalreporter.write_line(line)


@contextmanager
def engine_or_skip() -> Iterator[None]:
    """Skip where no engine can be had, but not in CI."""
    try:
        yield
    except NoEngineError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def container_engine(pytestconfig: pytest.Config) -> Iterator[None]:
    with engine_or_skip(), engine() as kind:
        report(pytestconfig, f"engine: {kind}")
        yield


@pytest.fixture(scope="session")
def base(container_engine: None, pytestconfig: pytest.Config) -> str:
    with engine_or_skip():
        name, origin = base_image()
    report(pytestconfig, f"base: {name}, {origin}")
    return name


@pytest.fixture(scope="session")
def image(base: str, pytestconfig: pytest.Config) -> Image:
    """Build the cpu variant, which needs an index of its own; where there is none, the gpu variant."""
    return built("cpu" if can_build_cpu(base) else "gpu", base, pytestconfig)


@pytest.fixture(scope="session")
def gpu_image(base: str, pytestconfig: pytest.Config) -> Image:
    return built("gpu", base, pytestconfig)


def built(variant: str, base: str, config: pytest.Config) -> Image:
    image = build_image(variant, base)
    size = f"{image.bytes / 1e9:.2f} GB, built in {image.seconds:.0f} s"
    report(config, f"{variant} variant: {size}, torch {image.torch}")
    return image


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled data, thinned out to one file of some thousand rows."""
    pytest.importorskip("pandas", reason="needs the demo extra")
    whole, thin = tmp_path_factory.mktemp("whole") / "flights", tmp_path_factory.mktemp("flights")
    subprocess.run([sys.executable, ROOT / "examples" / "flights.py", whole], check=True, timeout=120)
    table = pq.read_table(whole)
    rows = pa.array(range(0, len(table), len(table) // ROWS))
    pq.write_table(table.take(rows), thin / "flights.parquet")
    return thin


@contextmanager
def open_to_all() -> Iterator[None]:
    """Let any user write into the folders made meanwhile: the image's is none of this machine."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)
