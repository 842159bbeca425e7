"""What a misspelt name may mean."""

import difflib
from collections.abc import Iterable, Sequence

# All columns of wide data would fill the screen.
SHOWN = 20


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
    folded = {each.casefold(): each for each in known}
    if close := difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff):
        return f"did you mean {folded[close[0]]!r}?"
    if not shown:
        return "there is none"
    listed = ", ".join(repr(each) for each in shown[:SHOWN])
    return f"expected one of {listed}{f' and {len(shown) - SHOWN:,} more' * (len(shown) > SHOWN)}"
