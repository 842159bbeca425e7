"""Each source is compiled once, also where the environment forbids bytecode beside it: under ``build/`` then.

The tests start hundreds of processes. Without bytecode, each would compile what it imports again, which takes as long
as running it. Where the packages are installed with bytecode, that is read, and it is beside the sources for the rest.

Files with slow tests come first, so that no job begins a long one when the others are about to end.
"""

import atexit
import gc
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

# After every 700 new objects, as by default, collecting the tests takes a third more time.
gc.set_threshold(50_000)

if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Under a prefix, bytecode beside a source is not read: all that is installed would be compiled a second time.
    if not Path(importlib.util.cache_from_source(pytest.__file__)).exists():
        sys.pycache_prefix = str(Path(__file__).parent / "build/pycache")
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several run side by side: threads of numpy and torch would only get in each other's way. What trains sets its own.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in files with an example: any other would be imported for none, and all its names looked at."""
    found = yield
    if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
        return [each for each in found if not isinstance(each, DoctestModule)]
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files first that have tests marked slow, those with the most of them before the others."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish() -> None:
    """Leave alone what has been imported and collected: it stays until the end, and is most of what there is."""
    gc.freeze()
    # What is left then is reported as leaked.
    atexit.register(gc.unfreeze)
