"""What a setting is besides its type and its text: a default, and a group."""

from dataclasses import field
from typing import Literal, TypeVar

Group = Literal["Data", "Model", "Training", "Distribution", "Output"]
"""What a setting is about: the panels of ``--help``, in their order there."""

T = TypeVar("T")


def setting(default: T, group: Group) -> T:
    """Return a config's field with its default and its group, which ``--help`` shows it in."""
    return field(default=default, metadata={"group": group})
