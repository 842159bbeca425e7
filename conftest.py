"""Each source is compiled once, also where the environment forbids bytecode beside it: under ``build/`` then.

The tests start hundreds of processes. Without bytecode, each would compile all of torch again, which takes as long as
running it.

kfp asks ``inspect.stack`` for the name of its caller whenever a task is configured. Under pytest, with a deep stack and
thousands of modules, finding the source lines that come with it was two thirds of the collection: they are left out.
"""

import inspect
import os
import sys
from pathlib import Path
from types import FrameType

if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parent / "build/pycache")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several run side by side: threads of numpy and torch would only get in each other's way. What trains sets its own.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def stack_without_source(context: int = 0) -> list[inspect.FrameInfo]:
    """Return what ``inspect.stack`` does, without lines of source."""
    found: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


inspect.stack = stack_without_source
