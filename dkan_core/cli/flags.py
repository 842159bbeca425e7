"""Flags in the help of commands."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typer.core import TyperCommand as Base
else:
    Base = object


class PlainFlags(Base):
    """Mixin for commands: the help shows flags without typer's ``<bool>``, as they take no value."""

    def get_params(self, ctx: Any) -> Any:
        """Return options and arguments."""
        found = super().get_params(ctx)
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return found
