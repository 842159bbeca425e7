"""The rule by which rows were split, as the manifest has it: from the settings, back to them, and in words."""

from collections.abc import Mapping
from typing import Any

from dkan_core.config.prepare import PrepareConfig
from dkan_core.data.source.time_split import TIME_BOUNDS, TimeBounds


def rule_of_settings(config: PrepareConfig, keys: str, bounds: TimeBounds | None) -> dict[str, str]:
    """Return the rule that settings ask for.

    Args:
        config: The settings.
        keys: Kind of the values whose hash decides, from ``ColumnRoles``; empty if a rule does not name it.
        bounds: Where valid and test begin, of a split by time; None before they are found.
    """
    group = {} if config.group is None else {"group": config.group}
    if config.split_column is not None:
        return {"by": "column", "column": config.split_column, **group}
    if config.split_by_time is not None:
        found = {} if bounds is None else bounds.describe()
        return {"by": "time", "column": config.split_by_time, "percent": config.split, **found, **group}
    by = {"by": "group", "column": config.group} if config.group is not None else {"by": config.split_by}
    return {**by, "percent": config.split, **({"keys": keys} if keys else {})}


def settings_of_rule(rule: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of ``PrepareConfig`` that ask for a rule, to split more rows by it.

    >>> settings_of_rule({"by": "group", "column": "user", "percent": "70/10/20", "keys": "texts"})
    {'group': 'user', 'split': '70/10/20'}
    """
    settings = {
        "column": {"split_column": rule.get("column"), "group": rule.get("group")},
        "time": {"split_by_time": rule.get("column"), "group": rule.get("group")},
        "group": {"group": rule.get("column")},
    }
    percent = {"split": rule["percent"]} if "percent" in rule else {}
    return {**settings.get(rule["by"], {"split_by": rule["by"]}), **percent}


def without_bounds(rule: Mapping[str, str]) -> dict[str, str]:
    """Return a rule as it is before the rows are read, when the bounds of a split by time are not known."""
    return {key: value for key, value in rule.items() if key not in TIME_BOUNDS}


def describe_split(rule: Mapping[str, str]) -> str:
    """Return how rows were split, as a sentence for a report.

    >>> describe_split({"by": "row", "percent": "70/10/20"})
    'Split at random, row by row (70/10/20).'
    >>> describe_split({"by": "time", "column": "day", "percent": "70/10/20", "valid from": "5", "test from": "6"})
    'Split by time: the earliest rows by day are train, valid from 5, test from 6.'
    >>> describe_split({"by": "column", "column": "split", "group": "date"})
    'Split by column split. Rows of one date belong together.'
    """
    column, percent = rule.get("column", ""), f" ({rule['percent']})" if "percent" in rule else ""
    bounds = "".join(f", {name} {rule[name]}" for name in TIME_BOUNDS if name in rule)
    sentences = {
        "column": f"Split by column {column}.",
        "time": f"Split by time: the earliest rows by {column} are train{bounds}.",
        "group": f"Split by group: rows of one {column} are in one split{percent}.",
        "row": f"Split at random, row by row{percent}.",
        "content": f"Split at random, by what each row holds{percent}.",
        "estimator": "Held out at random.",
    }
    together = f" Rows of one {rule['group']} belong together." if "group" in rule else ""
    return sentences.get(rule["by"], f"Split by {rule['by']}.") + together
