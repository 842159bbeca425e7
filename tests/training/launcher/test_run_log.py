"""What dkan logs in a run is kept in a file, and seen elsewhere as if there were none."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from dkan_core.training.launcher.run_log import EndLogger, capture_log

SCRIPT = """
import logging, sys
from pathlib import Path
from dkan_core.training.launcher.run_log import capture_log
exec(sys.argv[2])
logger = logging.getLogger("dkan_core.training.launcher.train")
def speak(when):
    logger.info("%s: reading s3://key:secret@bucket/model", when)
    logger.warning("%s: a worker died", when)
with capture_log() as write_to:
    speak("early")
    write_to(Path(sys.argv[1]))
    speak("late")
speak("after")
"""
INFO = "{}: reading s3://{}@bucket/model\n"
WARNING = "{}: a worker died\n"


@pytest.mark.parametrize(
    ("set_up", "shows_info"),
    [
        ("", False),
        ("logging.basicConfig(format='%(message)s')", False),
        ("logging.basicConfig(format='%(message)s', level='INFO')", True),
        (
            "ours = logging.getLogger('dkan_core'); ours.addHandler(logging.StreamHandler()); ours.setLevel('INFO')",
            True,
        ),
    ],
    ids=["nothing", "warnings", "info", "info of dkan alone"],
)
def test_file_has_all_and_the_caller_sees_what_was_set_up(tmp_path: Path, set_up: str, shows_info: bool) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "train.log"), set_up]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert shown == "".join(
        (INFO.format(when, "key:secret") if shows_info else "") + WARNING.format(when)
        for when in ("early", "late", "after")
    )
    kept = (tmp_path / "train.log").read_text()
    lines = [line.split(" ", 3)[3] for line in kept.splitlines(keepends=True)]
    assert "".join(lines) == "".join(INFO.format(when, "***") + WARNING.format(when) for when in ("early", "late"))


def test_log_on_a_full_disk_is_closed_without_an_error() -> None:
    with capture_log() as write_to:
        write_to(Path("/dev/full"))
        logging.getLogger("dkan_core.training.launcher.train").warning("a worker died")
    assert not any(handler.__class__.__name__ == "_Forward" for handler in logging.getLogger("dkan_core").handlers)


def test_start_of_a_finished_run_without_a_checkpoint_needs_a_larger_limit(tmp_path: Path) -> None:
    """As where a bucket for checkpoints could not be reached: the model is complete."""
    ending = EndLogger("run", tmp_path / "model", "", "--resume auto")
    assert ending.next_step() == "start again with --resume auto or --overwrite"
    ending.reason = "epochs"
    assert ending.next_step() == "start again with --overwrite and a larger --epochs"


def test_end_does_not_say_that_a_checkpoint_has_a_model_that_it_may_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the disk has been read-only since an older checkpoint."""
    caplog.set_level("INFO", logger="dkan_core")
    ending = EndLogger("run", tmp_path / "model", "run/checkpoints/step-1", "--resume auto", has_unsaved_best=True)
    ending.__exit__(None, OSError("read-only"), None)
    assert caplog.messages == [
        "run ended (error: read-only): the best model is not in run/model yet, and resuming saves it there; "
        "newest checkpoint run/checkpoints/step-1; continue with --resume auto"
    ]
