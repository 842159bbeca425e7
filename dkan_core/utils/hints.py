"""Parts of messages: numbers of things, the name that a misspelt one may mean, and options to give."""

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

# Says of columns how to leave them out.
Advice: TypeAlias = Callable[[Sequence[str]], str]

# All columns of wide data would fill the screen.
SHOWN = 20
# As many names as fit on two lines of a terminal.
SHOWN_NAMES = 8
# A value may be as long as a request or a damaged file; a message is to stay on a line.
SHOWN_CHARACTERS = 60
# Of the rarer class, below which a warning is given: one row more or less is seen in average precision.
FEW_ROWS = 20


def hint(name: str, known: Iterable[str], shown: Sequence[str], *, cutoff: float = 0.7) -> str:
    """Return which name may be meant: one that is spelt alike, in capitals or not; else some of them.

    Args:
        name: What was given.
        known: Names that may be meant.
        shown: Names to list where none is near.
        cutoff: How much of both must be alike; names of pairs all have a cross in common.

    >>> hint("Agee", ["age", "hours"], ["age", "hours"]), hint("z", ["age"], ["age"]), hint("z", [], [])
    ("did you mean 'age'?", "expected one of 'age'", 'there is none')
    """
    if (meant := spelt_alike(name, known, cutoff=cutoff)) is not None:
        return f"did you mean {meant!r}?"
    if not shown:
        return "there is none"
    return f"expected one of {some_of([*map(repr, shown)], SHOWN)}"


def spelt_alike(name: str, known: Iterable[str], *, cutoff: float = 0.7) -> str | None:
    """Return the name that is spelt most like another one, in capitals or not; None where none is near.

    >>> spelt_alike("Agee", ["age", "hours"]), spelt_alike("z", ["age"])
    ('age', None)
    """
    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def some_of(names: Sequence[str], count: int = 3, separator: str = ", ") -> str:
    """Return the first of some names, and how many more there are.

    >>> some_of(["a", "b", "c"]), some_of(["a", "b", "c", "d"])
    ('a, b, c', 'a, b, c and 1 more')
    """
    return f"{separator.join(names[:count])}{f' and {len(names) - count:,} more' * (len(names) > count)}"


def listed_names(names: Sequence[str]) -> str:
    """Return names for a message, the first few of many.

    >>> listed_names(["a", "b"])
    "'a', 'b'"
    """
    return some_of([*map(repr, names)], SHOWN_NAMES)


def listed_counts(counts: Mapping[str, int]) -> str:
    """Return names with numbers of rows for a message, the first few of many.

    >>> listed_counts({"a": 1, "b": 2_000})
    "'a' (1 row), 'b' (2,000 rows)"
    """
    return some_of([f"{name!r} ({counted(count, 'row')})" for name, count in counts.items()], SHOWN_NAMES)


def few_rows(counts: Mapping[str, int]) -> str:
    """Return which labels have few rows of their rarer class, and how many; an empty text where none has.

    >>> few_rows({"late": 4, "lost": 300}), few_rows({"lost": 300})
    ('late 4', '')
    """
    return some_of([f"{label} {count}" for label, count in counts.items() if count < FEW_ROWS], 5)


def first_line(error: BaseException) -> str:
    r"""Return the first line of what an error says, or its type where it says nothing.

    >>> first_line(ValueError("no magic bytes\nat offset 0")), first_line(KeyError())
    ('no magic bytes', 'KeyError')
    """
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def flag(option: str, value: object) -> str:
    """Return an option of the command line with its value, as a shell takes it.

    >>> flag("drop", "zip code"), flag("drop", "zip")
    ("--drop 'zip code'", '--drop zip')
    """
    return f"--{option} {shlex.quote(str(value))}"


def drop_advice(columns: Sequence[str], argument: str = "") -> str:
    """Return how to leave columns out: with an option, or of the rows that are an argument of a function.

    >>> drop_advice(["zip"]), drop_advice(["zip", "the key"])
    ('leave it out with --drop zip', "leave them out with --drop zip --drop 'the key'")
    >>> drop_advice(["zip"], "X")
    'leave it out of X'
    """
    flags = some_of([flag("drop", name) for name in columns], SHOWN, " ")
    return f"leave {'it' if len(columns) == 1 else 'them'} out {f'of {argument}' if argument else f'with {flags}'}"


def counted(count: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def one_line(text: str) -> str:
    r"""Write line breaks and other control characters as Python does: a name in a table may have any.

    >>> print(one_line("two\nlines"))
    two\nlines
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)


def brief(text: str, length: int = 120) -> str:
    """Cut a text where it is long, such as a value of the data that would fill pages.

    >>> brief("a" * 120) == "a" * 120, brief("abcdef", 5)
    (True, 'abcd…')
    """
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shown(value: object) -> str:
    """Return a value as a message names it: on one line, and cut where it is long.

    >>> shown("north"), len(shown("n" * 1000)), shown(10**5000)
    ("'north'", 61, 'a value of type int')
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a whole number of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
