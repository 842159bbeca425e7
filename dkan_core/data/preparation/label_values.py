"""What labels hold: which values count as 1 and as 0, and what to say of others."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dkan_core.errors import DataError
from dkan_core.utils.messages import counted, flag, listed_counts, some_of

# Spellings of the same answer, in small letters.
SPELLINGS = (frozenset({"1", "t", "true", "y", "yes"}), frozenset({"0", "f", "false", "n", "no"}))

# Texts that may stand for a missing value, in small letters.
MISSING_SPELLINGS = frozenset({"", "-", "?", "<na>", "n/a", "na", "nan", "none", "null", "unknown"})

logger = logging.getLogger(__name__)


def by_rows(counts: Mapping[str, int]) -> dict[str, int]:
    """Return values with numbers of rows, the most frequent first.

    >>> by_rows({"N": 1, "no": 2})
    {'no': 2, 'N': 1}
    """
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def listed_others(zeros: int, others: Mapping[str, int]) -> str:
    """Return the values that count as 0 for a message.

    Args:
        zeros: The rows that hold one.
        others: The values with their rows, not all where there are very many.

    >>> listed_others(2, {"no": 2}), listed_others(5, {"no": 2})
    ("'no' (2 rows)", "'no' (2 rows), and others in 3 rows")
    """
    rest = zeros - sum(others.values())
    return listed_counts(by_rows(others)) + f", and others in {counted(rest, 'row')}" * (rest > 0)


def log_positive(label: str, positive: str, ones: int, zeros: int, others: Mapping[str, int]) -> None:
    """Log which values of a label count as 1 and as 0, and warn of those that perhaps should not count as 0.

    Args:
        label: The label.
        positive: The value that counts as 1.
        ones: The rows that hold it.
        zeros: The rows that hold another value.
        others: Other values with their rows, not all where there are very many.
    """
    listed = listed_others(zeros, others) or "no row"
    logger.info("label %r: %r (%s) counts as 1, %s as 0", label, positive, counted(ones, "row"), listed)
    for doubt in doubtful_zeros(positive, others):
        logger.warning("label %r: %s", label, doubt)


def doubtful_zeros(positive: str, others: Mapping[str, int]) -> list[str]:
    """Return which values perhaps should not count as 0: other spellings of the one that counts as 1, missing values.

    >>> doubtful_zeros("yes", {"Y": 1, "no": 4})
    ["'Y' counts as 0 (1 row), although it may mean 'yes'; if it does, write both alike"]
    >>> doubtful_zeros("yes", {"N/A": 2, "no": 4})
    ["'N/A' counts as 0 (2 rows), although it may mean that the label is missing; if it does, write null"]
    """
    found = []
    for value, rows in others.items():
        zero = f"{value!r} counts as 0 ({counted(rows, 'row')}), although it may mean"
        if any({_plain(positive), _plain(value)} <= alike for alike in SPELLINGS):
            found.append(f"{zero} {positive!r}; if it does, write both alike")
        elif _plain(value) in MISSING_SPELLINGS:
            found.append(f"{zero} that the label is missing; if it does, write null")
    return found


def _plain(value: str) -> str:
    return value.strip().casefold()


def _positive_hint(name: str, values: Sequence[object]) -> str:
    """Return what can be done about a label of these values."""
    if len(values) > 2:
        return "give each class, or each side of a threshold, a label column of 0 and 1, or name it with --positive"
    # A value without "label=" is that of the only label; one with "=" in it would be taken for "label=value".
    shown = " or ".join(flag("positive", f"{name}={value}" if "=" in str(value) else value) for value in values)
    return f"say which value counts as 1: {shown}"


def _alike(values: Iterable[object]) -> str:
    """Return which values differ only in case or in spaces around them, as a part of a message; empty where none do."""
    spellings = defaultdict[str, list[str]](list)
    for value in values:
        if isinstance(value, str):
            spellings[_plain(value)].append(repr(value))
    several = next((found for found in spellings.values() if len(found) > 1), [])
    return f"; {' and '.join(several)} differ only in case or spaces" if several else ""


def not_binary(name: str, counters: Sequence[Counter[object]], where: str, advice: str | None = None) -> DataError:
    """Describe a label's column that does not hold 0, 1 or null alone.

    Args:
        name: The column.
        counters: How often each value occurs.
        where: The file, as messages should call it.
        advice: What can be done about it. Default: to name the one that counts as 1.
    """
    seen: Counter[str] = Counter()
    for counter in counters:
        for value, count in counter.items():
            seen["null" if value is None else repr(value)] += count
    counts = some_of([f"{value} ({counted(count, 'row')})" for value, count in seen.most_common()], 8)
    values = dict.fromkeys(value for counter in counters for value in counter if value is not None)
    alike, advice = _alike(values), advice or _positive_hint(name, [*values])
    return DataError(f"{where}: label column {name!r} must hold 0, 1 or null; found {counts}{alike}; {advice}")
