"""Columns by which rows that are split at random could have been split: those that look like a time or a group.

Rows of one day or customer are alike. Split at random, a model is tested on days and customers that it has seen.
"""

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.source.column_types import is_number, is_text
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.data.source.times import is_time
from dkan_core.utils.messages import flag, listed_names

TIMES = re.compile(
    r"date|datetime|timestamp|time|ts|year|month|year_?month|quarter"
    r"|(created|updated|event|order|transaction|start|pickup|purchase|visit|trip|report)_?(date|datetime|time|at|ts)"
)
# Names of dates that do not tell when a row arose.
OTHER_TIMES = re.compile(r"birth|dob|expir")
GROUPS = re.compile(
    r"(customer|client|user|patient|member|subject|household|person|account|device|machine|session)(_?(id|no|number))?"
    r"|\w+_(id|uuid)"
)
# Largest share of distinct values, in the first rows, of a column of groups. In an identifier of rows hardly any
# value repeats.
MAX_DISTINCT = 0.9


def find_split_hints(types: Mapping[str, pa.DataType], taken: set[str], path: str) -> dict[str, str]:
    """Return the columns that rows could be split by, as "time" and "group"; several that may be the time as "times".

    Args:
        types: Type of each column.
        taken: Columns that are no candidates, such as labels.
        path: A file with rows.
    """
    free = {name: kind for name, kind in types.items() if name not in taken}
    typed = [name for name, kind in free.items() if is_time(kind) and not OTHER_TIMES.search(_plain(name))]
    named = [
        name
        for name, kind in free.items()
        if TIMES.fullmatch(_plain(name)) and is_number(kind) and not OTHER_TIMES.search(_plain(name))
    ]
    # Among several dates, such as a sign-up date, a column called event_time tells when a row arose.
    best = [name for name in typed if TIMES.fullmatch(_plain(name))] or named
    times = best[:1] or typed
    groups = [
        name
        for name, kind in free.items()
        if GROUPS.fullmatch(_plain(name)) and (is_text(kind) or pa.types.is_integer(kind)) and _repeats(name, path)
    ]
    found = {"group": groups[0]} if groups else {}
    if not times:
        return found
    return {"time": times[0], **found} if len(times) == 1 else {"times": listed_names(times), **found}


def _plain(name: str) -> str:
    """Return a column's name as the patterns have it: in small letters, with ``_`` between words."""
    return re.sub(r"[\s.-]+", "_", name.strip().lower())


def _repeats(name: str, path: str) -> bool:
    """Return whether several of the first rows share a value."""
    for batch in read_batches(open_file(path), [name]):
        different = pc.count_distinct(batch.column(0)).as_py()
        return bool(1 < different <= MAX_DISTINCT * batch.num_rows)
    return False


def split_warnings(hints: Mapping[str, str]) -> list[str]:
    """Return what to say where rows were split at random.

    >>> split_warnings({"time": "sold on"})
    ["rows were split at random, although 'sold on' looks like a time: scores on later rows may be lower than here; \
see --split-by-time 'sold on'"]
    >>> split_warnings({"times": "'signup', 'first call'"})
    ["rows were split at random, although 'signup', 'first call' look like times: scores on later rows may be lower \
than here; see --split-by-time"]
    """
    why = {
        "time": "{name!r} looks like a time: scores on later rows may be lower than here; see {time}",
        "times": "{name} look like times: scores on later rows may be lower than here; see --split-by-time",
        "group": "rows that share a value of {name!r} may be alike: scores on new ones may be lower than here; see "
        "{group}",
    }
    return [
        "rows were split at random, although "
        + why[kind].format(name=name, time=flag("split-by-time", name), group=flag("group", name))
        for kind, name in hints.items()
    ]
