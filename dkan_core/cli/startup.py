"""What keeps commands quick to start: options that are made when they are needed, and no pandas for pyarrow."""

import functools
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

from typer.core import TyperCommand


class LazyCommand(TyperCommand):
    """A command that is known by its help alone until its options are needed; the list of commands needs none.

    Args:
        make: Makes the command with its options.
        known: What is known before.
    """

    def __init__(self, *, make: Callable[[], TyperCommand], **known: Any) -> None:
        self._make = make
        super().__init__(**known)

    @functools.cached_property
    def whole(self) -> TyperCommand:
        """The command with its options."""
        return self._make()

    @property
    def params(self) -> list[Any]:
        """Arguments and options."""
        return self.whole.params

    @params.setter
    def params(self, _: list[Any]) -> None:
        """Leave out what ``__init__`` sets: there are none before they are needed."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        return self.whole.invoke(ctx)


def import_pyarrow_without_pandas() -> None:
    """Import pyarrow so that it does not import pandas, which takes two to four times as long as pyarrow itself.

    Its first array looks for pandas, to know a Series when it meets one; no command has any. Whoever else imports
    pandas gets it.
    """
    if "pandas" in sys.modules:
        return
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _WithoutPandas(MetaPathFinder):
    """Has Python find no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raise what an import raises where there is no pandas; leave other modules to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError("not looked for", name=name)
