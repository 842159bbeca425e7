"""Parts of messages: numbers of things, the name that a misspelt one may mean, and options to give."""

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

# A function that says how to leave out some columns.
Advice: TypeAlias = Callable[[Sequence[str]], str]

# Most columns in a list: all columns of wide data would fill the screen.
SHOWN = 20
# Most names in a hint: these fit on two lines of a terminal.
SHOWN_NAMES = 8
# Characters of a value: it may be as long as a request or a damaged file, and a message should stay on a line.
SHOWN_CHARACTERS = 60
# Rows of the rarer class below which a warning is given, as single rows then change average precision visibly.
FEW_ROWS = 20


def hint(name: str, known: Iterable[str], shown: Sequence[str], *, cutoff: float = 0.7) -> str:
    """Return a hint at a name with similar spelling, regardless of case, or else a list of some names.

    Args:
        name: What was given.
        known: Names that may be meant.
        shown: Names to list where none is near.
        cutoff: Smallest similarity, from 0 to 1; higher for names of pairs, which all have a cross in common.

    >>> hint("Agee", ["age", "hours"], ["age", "hours"]), hint("z", ["age"], ["age"]), hint("z", [], [])
    ("did you mean 'age'?", "expected one of 'age'", 'there is none')
    """
    if (meant := spelt_alike(name, known, cutoff=cutoff)) is not None:
        return f"did you mean {meant!r}?"
    if not shown:
        return "there is none"
    return f"expected one of {some_of([*map(repr, shown)], SHOWN)}"


def spelt_alike(name: str, known: Iterable[str], *, cutoff: float = 0.7) -> str | None:
    """Return the name with the most similar spelling, regardless of case; None if none is similar.

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
    """Return the labels with few rows of their rarer class, with their numbers; empty if there are none.

    >>> few_rows({"late": 4, "lost": 300}), few_rows({"lost": 300})
    ('late 4', '')
    """
    return some_of([f"{label} {count}" for label, count in counts.items() if count < FEW_ROWS], 5)


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's text, or its type if the text is empty.

    >>> first_line(ValueError("no magic bytes\nat offset 0")), first_line(KeyError())
    ('no magic bytes', 'KeyError')
    """
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def flag(option: str, value: object) -> str:
    """Return a command-line option with its value, quoted for a shell.

    >>> flag("drop", "zip code"), flag("drop", "zip")
    ("--drop 'zip code'", '--drop zip')
    """
    return f"--{option} {shlex.quote(str(value))}"


def drop_advice(columns: Sequence[str], argument: str = "") -> str:
    """Return advice to leave columns out, by an option, or from the rows that a function has as an argument.

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
    r"""Escape line breaks and other control characters as Python does, since names in a table may have any.

    >>> print(one_line("two\nlines"))
    two\nlines
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)


def brief(text: str, length: int = 120) -> str:
    """Shorten a long text, such as a value of the data that would fill pages.

    >>> brief("a" * 120) == "a" * 120, brief("abcdef", 5)
    (True, 'abcd…')
    """
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shown(value: object) -> str:
    """Return a value for a message: on one line, and cut if it is long.

    >>> shown("north"), len(shown("n" * 1000)), shown(10**5000)
    ("'north'", 61, 'a value of type int')
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a whole number of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
