"""Scratch folders vanish with their block, and those of killed processes with the next one."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dkan_core import OutputError
from dkan_core.utils.storage.scratch import PREFIX, scratch_folder

HOLD = """
import sys
from dkan_core.utils.storage.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "rows").write_bytes(b"rows")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def hold(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_folder_is_private_and_goes_with_its_block(temporary: Path) -> None:
    with scratch_folder() as folder:
        assert folder.is_dir() and not os.listdir(folder)
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert not os.listdir(temporary)
    with pytest.raises(KeyboardInterrupt), scratch_folder():
        raise KeyboardInterrupt
    assert not os.listdir(temporary)


def test_what_a_killed_process_left_goes_and_a_living_one_keeps_its_own(temporary: Path) -> None:
    (dead, left), (living, used) = hold(temporary), hold(temporary)
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    other = temporary / f"{PREFIX}without-a-lock"
    other.mkdir()
    assert (left / "rows").exists()
    with scratch_folder():
        assert not left.parent.exists()
        assert (used / "rows").exists() and other.exists()
    living.communicate()
    assert os.listdir(temporary) == [other.name]


def test_folder_that_cannot_be_made_is_said(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "missing"))
    with (
        pytest.raises(OutputError, match=r"missing: cannot be written \(No such file or directory\)"),
        scratch_folder(),
    ):
        pass


def test_no_folder_for_temporary_files_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", find_none)
    with pytest.raises(OutputError, match=r"TMPDIR: no folder .* \(No usable temporary"), scratch_folder():
        pass


def test_many_at_the_same_time_keep_their_folders(temporary: Path) -> None:
    script = """
from dkan_core.utils.storage.scratch import scratch_folder
for number in range(300):
    with scratch_folder() as folder:
        (folder / "rows").write_bytes(b"rows")
        assert (folder / "rows").exists()
"""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    processes = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert not os.listdir(temporary)
