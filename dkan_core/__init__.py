"""dkan: FastKAN on huge tabular data, on all the GPUs of one or several nodes.

The public names and their modules are listed once, in ``__init__.pyi``, which type checkers and editors read as well. A
name is imported when it is first used, so that ``import dkan_core`` is fast and needs no torch.
"""

import ast
import os
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.3.0.dev0"

# Matrix products of Intel's library then have the same bits whatever the number of threads and the place in memory.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {
    alias.name: f"{statement.module}"
    for statement in _STUB.body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dkan_core' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    # From now on Python finds the name here, without asking this function again.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # What a person may want: not what this module is made of.
    return ["__version__", *__all__]
