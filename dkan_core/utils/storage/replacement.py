"""Replacing a folder's result by one that was made in a folder inside it: a killed process loses neither.

The new result is first declared complete by one rename. From then on whoever comes next finishes what was begun, so
that the folder holds the old result or the new one, and never a part of either for good. Locks may not hold between
machines: two that finish at once hinder each other at most, as each step is a rename, which only one of them makes.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dkan_core.utils.storage.files import remove, sync_folder

# Folder with a whole new result, while the old one is moved out of its way.
COMPLETE = ".complete"

# The same folder once nothing of the old result is in its place, while the new one moves to its place.
MOVING = ".moving"

# Folder in these two that the old result is moved to: once the new one is in its place, ``COMPLETE`` is gone, and so
# nothing can be moved there by a process that still takes the new result for the old one.
OLD = ".old"


def replace_result(staging: Path, target: Path, names: Sequence[str]) -> None:
    """Replace the result in ``target`` by that in ``staging``, a folder inside it.

    Args:
        staging: Holds the new result, whole.
        target: Folder of the result; the caller holds its lock.
        names: What a result consists of, if all of it is there. The last one arrives after the rest.
    """
    assert (staging / names[-1]).exists(), f"{names[-1]} was not written"
    for name in set(os.listdir(staging)) - set(names):
        remove(staging / name)
    for folder in (staging, *filter(Path.is_dir, staging.iterdir())):
        sync_folder(folder)
    staging.rename(target / COMPLETE)
    sync_folder(target)
    finish_replacement(target, names)


def is_interrupted(target: Path, last: str) -> bool:
    """Return whether a process was killed while it replaced the result in ``target``, or is at it.

    Args:
        target: Folder of the result.
        last: The name that arrives after the rest.
    """
    with suppress(OSError):  # said by whoever reads or writes there
        return any((target / folder / last).exists() for folder in (COMPLETE, MOVING))
    return False


def finish_replacement(target: Path, names: Sequence[str]) -> None:
    """Do what is left of a replacement, if one was begun; ``replace_result`` has the arguments."""
    complete = target / COMPLETE
    moving = target / MOVING
    if (complete / names[-1]).exists():
        (complete / OLD).mkdir(exist_ok=True)
        # The last name goes first: whoever reads meanwhile finds no result rather than a part of one.
        for name in reversed(names):
            if os.path.lexists(target / name):
                (target / name).rename(complete / OLD / name)
        sync_folder(target)
        # From here on the old result is out of the way, and only the new one may move.
        complete.rename(moving)
    if moving.is_dir():
        for name in names:
            if (moving / name).exists():
                (moving / name).replace(target / name)
        sync_folder(target)
        shutil.rmtree(moving)
