"""The figures as JSON, one entry per experiment with its machine, and as Markdown tables."""

import json
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.machine import processor
from dkan_core.utils.resources import available_cores
from dkan_core.utils.storage.files import write_atomic

VERSIONS = ("torch", "numpy")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Table:
    """How the rows of an experiment are shown.

    Args:
        columns: Key in a row -> heading and format.
        note: A sentence under the heading.
    """

    columns: dict[str, tuple[str, str]]
    note: str

    def markdown(self, rows: Rows) -> list[str]:
        """Return the lines of the table, without columns that no row has.

        >>> Table({"name": ("who", ""), "cost": ("cost", ".1f")}, "").markdown([{"name": "a", "cost": 1}])
        ['| who | cost |', '|---|---:|', '| a | 1.0 |']
        """
        columns = {key: column for key, column in self.columns.items() if any(key in row for row in rows)}
        lines = ["| " + " | ".join(heading for heading, _ in columns.values()) + " |"]
        lines.append("|" + "".join("---:|" if form else "---|" for _, form in columns.values()))
        for row in rows:
            cells = (format(row[key], form) if key in row else "" for key, (_, form) in columns.items())
            lines.append("| " + " | ".join(cells) + " |")
        return lines


TABLES = {
    "exchange": Table(
        {
            "scheme": ("scheme", ""),
            "workers": ("workers", "d"),
            "optimizer": ("optimizer step", ""),
            "wall_ms": ("ms per step", ".2f"),
            "wall_ratio": ("relative to the server", ".2f"),
            "cpu_ms": ("CPU ms per step", ".2f"),
            "cpu_ratio": ("relative to the server", ".2f"),
        },
        "Cost of a step without its gradient; medians, ratios within each round.",
    ),
    "efficiency": Table(
        {
            "data": ("data", ""),
            "workers": ("workers", "d"),
            "batch_size": ("batch", ",d"),
            "rows_per_cpu_second": ("rows per CPU second", ",.0f"),
            "efficiency": ("relative to one worker", ".3f"),
            "rows_per_second": ("rows/s", ",.0f"),
            "speedup": ("relative to one worker", ".2f"),
        },
        "Launcher, server and workers, each worker with one thread.",
    ),
    "overhead": Table(
        {
            "data": ("data", ""),
            "run": ("every 100 steps", ""),
            "batch_size": ("batch", ",d"),
            "cpu_us_per_row": ("CPU µs per row", ".2f"),
            "overhead": ("overhead", "+.1%"),
            "error": ("±", ".1%"),
            "beside": ("of which launcher and server", "+.2%"),
            "beside_error": ("±", ".2%"),
        },
        "Launcher, server and workers; ± is one standard error of the median. The workers do no more work, but vary.",
    ),
    "healing": Table(
        {
            "data": ("data", ""),
            "trainer": ("trainer", ""),
            "fault": ("fault", ""),
            "pause": ("pause, s", ".2f"),
            "longest": ("longest, s", ".2f"),
            "healed": ("healed", ""),
            "rows_again": ("rows repeated", ",d"),
        },
        "Median and longest pause. A run that makes no progress is stopped after a while and counts as not healed.",
    ),
    "quality": Table(
        {
            "data": ("data", ""),
            "way": ("strategy", ""),
            "average_precision": ("AP", ".4f"),
            "spread": ("± over seeds", ".4f"),
            "difference": ("difference from one worker", "+.4f"),
            "difference_spread": ("± over seeds", ".4f"),
        },
        "Validation AP after the last epoch; ± is a standard deviation.",
    ),
}


def facts() -> dict[str, Any]:
    """Return what the figures depend on: machine, its load at the moment, and versions."""
    return {
        "processor": processor(),
        "cores": available_cores(),
        "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}},
    }


def add(path: Path, experiment: str, rows: Rows, options: dict[str, Any]) -> None:
    """Put an experiment's figures into a JSON file, which keeps those of the others."""
    content = read(path) if path.exists() else {}
    content[experiment] = {**facts(), "options": options, "rows": rows}
    write_atomic(path, json.dumps(content, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Return what ``add`` has written."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def markdown(content: dict[str, Any]) -> str:
    """Return the tables of all experiments that there are figures of."""
    lines: list[str] = []
    for name, table in TABLES.items():
        if name in content:
            entry = content[name]
            versions = ", ".join(f"{package} {number}" for package, number in entry["versions"].items())
            machine = f"{entry['processor']}, {entry['cores']} cores, load {entry['load']:.1f} at the end, {versions}"
            lines += [f"### {name.capitalize()}", "", f"{table.note} ({machine})", ""]
            lines += [*table.markdown(entry["rows"]), ""]
    return "\n".join(lines)
