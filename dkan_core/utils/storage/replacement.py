"""Replaces a folder's result by a new one built inside the folder; a kill at any time loses neither.

One rename first declares the new result complete. From then on, the next process finishes an interrupted replacement,
so the folder ends up with the whole old result or the whole new one. Locks may not hold between machines, but two
that finish at once do no harm, as each step is a rename, which only one of them can make.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dkan_core.utils.storage.files import remove, sync_folder

# Name of the folder with the complete new result, while the old one is moved away.
COMPLETE = ".complete"

# Its name once the old result is gone, while the new one is moved into place.
MOVING = ".moving"

# Folder inside these two for the old result. Once the new result is moving, ``COMPLETE`` no longer exists, so that a
# process that still takes the new result for the old one cannot move it there.
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
    with suppress(OSError):  # reported by the code that reads or writes there
        return any((target / folder / last).exists() for folder in (COMPLETE, MOVING))
    return False


def finish_replacement(target: Path, names: Sequence[str]) -> None:
    """Finish a replacement that was begun, if any; the arguments are those of ``replace_result``."""
    complete = target / COMPLETE
    moving = target / MOVING
    if (complete / names[-1]).exists():
        (complete / OLD).mkdir(exist_ok=True)
        # The last name goes first, so that readers find no result rather than a part of one.
        for name in reversed(names):
            if os.path.lexists(target / name):
                (target / name).rename(complete / OLD / name)
        sync_folder(target)
        # From here on the old result is gone, and only the new one may be moved.
        complete.rename(moving)
    if moving.is_dir():
        for name in names:
            if (moving / name).exists():
                (moving / name).replace(target / name)
        sync_folder(target)
        shutil.rmtree(moving)
