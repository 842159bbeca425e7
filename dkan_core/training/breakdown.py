"""Where a run's time went, from ``time`` in the entries of its history: seconds by part, shares, and a summary.

An entry covers the time since the one before::

    {"seconds": 12.5, "workers": [{"seconds": 12.4, "feed": 0.4, "compute": 9.1, ..., "utilization": 0.734,
    "peak_memory": 312000000}, ...], "server": {...}, "evaluator": {...}}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

Part = Literal["feed", "compute", "exchange", "wait", "update", "score", "save", "other"]
PARTS: tuple[Part, ...] = get_args(Part)

MEANING: dict[Part, str] = {
    "feed": "waiting for rows",
    "compute": "forward and backward pass",
    "exchange": "parameters and gradients on their way, and waiting for the slowest worker",
    "wait": "nothing to do",
    "update": "aggregating gradients, and the optimizer's step",
    "score": "snapshots scored",
    "save": "models written",
    "other": "start-up, and everything else",
}

History = Sequence[Mapping[str, Any]]


def processes(time: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name of each process of an entry, such as "worker 0", and its figures."""
    for rank, spent in enumerate(time.get("workers", ())):
        yield f"worker {rank}", spent
    for name in ("server", "evaluator"):
        if name in time:
            yield name, time[name]


def total(history: History) -> dict[str, dict[str, float]]:
    """Return the seconds of each process by part over a whole history, and its peak memory.

    >>> entry = {"time": {"workers": [{"seconds": 2, "feed": 0.5, "compute": 1.5, "peak_memory": 7}]}}
    >>> total([entry, entry])
    {'worker 0': {'seconds': 4.0, 'feed': 1.0, 'compute': 3.0, 'peak_memory': 7}}
    """
    sums: dict[str, dict[str, float]] = {}
    for entry in history:
        for name, spent in processes(entry.get("time") or {}):
            known = sums.setdefault(name, {})
            for part in ("seconds", *PARTS):
                if part in spent:
                    known[part] = known.get(part, 0.0) + spent[part]
            known["peak_memory"] = max(known.get("peak_memory", 0), spent.get("peak_memory", 0))
    return sums


def share(spent: Mapping[str, float], part: str) -> float:
    """Return what part of a process's time something took."""
    seconds = spent.get("seconds", 0.0)
    return spent.get(part, 0.0) / seconds if seconds else 0.0


def describe(time: Mapping[str, Any]) -> str:
    """Return a one-line summary of an entry, with the mean over several workers.

    >>> spent = {"seconds": 2.0, "feed": 0.1, "compute": 1.9, "wait": 0.0, "peak_memory": 3_000_000}
    >>> describe({"seconds": 2.0, "workers": [spent, spent], "evaluator": {"seconds": 1.0, "score": 1.0}})
    'workers feed 5% compute 95%; evaluator score 100%; peak memory of a worker 3 MB'
    """
    workers = time.get("workers", ())
    groups = {"workers": workers, **{name: [time[name]] for name in ("server", "evaluator") if name in time}}
    shares = {name: _shares(group) for name, group in groups.items() if group}
    texts = [f"{name} {text}" for name, text in shares.items() if text]  # none where two evaluations come at once
    if workers:
        texts.append(f"peak memory of a worker {max(spent['peak_memory'] for spent in workers) / 1e6:,.0f} MB")
    return "; ".join(texts)


def _shares(group: Sequence[Mapping[str, float]]) -> str:
    means = {part: sum(share(spent, part) for spent in group) / len(group) for part in PARTS}
    return " ".join(f"{part} {mean:.0%}" for part, mean in means.items() if round(100 * mean))
