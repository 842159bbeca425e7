"""Each source is compiled once, also where the environment forbids bytecode beside it: under ``build/`` then.

The tests start hundreds of processes. Without bytecode, each would compile all of torch again, which takes as long as
running it.
"""

import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parent / "build/pycache")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several run side by side: threads of numpy and torch would only get in each other's way. What trains sets its own.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
