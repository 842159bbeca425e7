"""A result that takes an earlier one's place: killed at any moment, one of the two is there whole."""

import signal
from pathlib import Path

import pytest

from dkan_core import OutputError
from dkan_core.utils.storage.outputs import PARTIAL
from dkan_core.utils.storage.replacement import COMPLETE, MOVING, OLD, finish_replacement
from dkan_core.utils.storage.staging import finish_interrupted, staged_folder
from tests import warm
from tests.utils.test_storage import NAMES, files, fill


@pytest.mark.parametrize("moved", [(), ("part",)])
def test_what_a_killed_command_left_is_replaced(tmp_path: Path, moved: tuple[str, ...]) -> None:
    (tmp_path / PARTIAL).mkdir()
    fill(tmp_path / PARTIAL, "killed")
    for name in moved:
        (tmp_path / PARTIAL / name).rename(tmp_path / name)
    with staged_folder(tmp_path, names=NAMES, overwrite=False) as folder:
        fill(folder, "new")
    assert files(tmp_path) == {"part/a": "new", "end.json": "new"}


DIES_AT_CALL = """
import os, shutil, sys
from pathlib import Path
from dkan_core.utils.storage import files, replacement
from dkan_core.utils.storage.staging import staged_folder

left = int(sys.argv[2])

def dying(function):
    def call(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*args, **options)
    return call

with staged_folder(sys.argv[1], names=("part", "end.json"), overwrite=True) as folder:
    (folder / "part").mkdir()
    (folder / "part/a").write_text("new")
    (folder / "end.json").write_text("new")
    Path.replace, Path.rename = dying(Path.replace), dying(Path.rename)
    replacement.remove, replacement.sync_folder = dying(replacement.remove), dying(replacement.sync_folder)
    shutil.rmtree = dying(shutil.rmtree)
"""


def test_process_killed_while_it_replaces_a_result_loses_neither(tmp_path: Path) -> None:
    killed = 0
    while True:
        out = tmp_path / str(killed)
        out.mkdir()
        fill(out, "old")
        code = warm.server().run(["-c", DIES_AT_CALL, out, killed]).returncode
        with pytest.raises(OutputError, match="--overwrite"), staged_folder(out, names=NAMES, overwrite=False):
            pass
        found = {name: text for name, text in files(out).items() if not name.startswith(".")}
        assert found in ({"part/a": "old", "end.json": "old"}, {"part/a": "new", "end.json": "new"})
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
    assert killed >= 10 and found["end.json"] == "new"


def test_two_machines_that_finish_a_replacement_at_once_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them finishes while the other is about to move the old result out of the way."""
    fill(tmp_path, "old")
    (tmp_path / COMPLETE).mkdir()
    fill(tmp_path / COMPLETE, "new")
    make_folder = Path.mkdir

    def make_and_wait(path: Path, **options: bool) -> None:
        make_folder(path, **options)
        if path.name == OLD:
            monkeypatch.undo()
            finish_replacement(tmp_path, NAMES)

    monkeypatch.setattr(Path, "mkdir", make_and_wait)
    finish_interrupted(tmp_path, NAMES)
    assert files(tmp_path) == {"part/a": "new", "end.json": "new"}


@pytest.mark.parametrize("state", [COMPLETE, MOVING])
@pytest.mark.parametrize("own", [("page", "numbers.json"), ("end.json",)])
def test_another_command_leaves_what_a_killed_one_had_finished(
    tmp_path: Path, state: str, own: tuple[str, ...]
) -> None:
    (tmp_path / state).mkdir()
    fill(tmp_path / state, "new")
    with (
        pytest.raises(OutputError, match=r"result of another command, which was killed at its end \(\w+"),
        staged_folder(tmp_path, names=own, overwrite=True),
    ):
        pass
    with staged_folder(tmp_path, names=NAMES, overwrite=True) as folder:
        assert {"part/a": "new", "end.json": "new"}.items() <= files(tmp_path).items()
        fill(folder, "newer")
    assert files(tmp_path) == {"part/a": "newer", "end.json": "newer"}
