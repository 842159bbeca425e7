"""Finds terms by the names that users write."""

from collections.abc import Sequence

from dkan_core.errors import ConfigError
from dkan_core.explanation.additive import CROSS, TermGroup
from dkan_core.utils.messages import hint

SIGN = " × "
"""The cross as the pages write it."""


def find_term(term: str, groups: Sequence[TermGroup], where: str) -> TermGroup:
    """Return the column or pair that a name means: a pair from either side, with an x or a × between its columns.

    Raises:
        ConfigError: None has such a name, or several have.
    """
    found = [group for group in groups if term in _names(group)]
    if not found:
        pairs = [group for group in groups if len(group.columns) == 2 and (CROSS in term or SIGN in term)]
        shown = [group.name for group in pairs or groups]
        known = [name for group in groups for name in _names(group)]
        raise ConfigError(f"{where}: the model has no such term; {hint(term, known, shown)}")
    if len(found) > 1:
        meant = " and ".join(_described(group) for group in found)
        raise ConfigError(f"{where}: the name is ambiguous, it is that of {meant}; expected the name of one term")
    return found[0]


def _names(group: TermGroup) -> list[str]:
    """Return the possible names of a term."""
    orders = (group.columns, group.columns[::-1])
    return [cross.join(columns) for cross in (CROSS, SIGN) for columns in orders]


def _described(group: TermGroup) -> str:
    if len(group.columns) == 1:
        return "a column"
    return f"the pair of {' and '.join(repr(column) for column in group.columns)}"
