"""``results.md``: the tables, and how to read them."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.quality.runner import OK
from benchmarks.quality.scores import CALIBRATION_BINS
from benchmarks.quality.summary import CPU_REFERENCE, REFERENCE, Row
from dkan_core.utils.messages import counted

NONE = "-"
HOW_TO_READ = """\
## How to read this

- AP: average precision on the test split; with several labels the mean over labels. The best of a data set is bold.
- 95%: bootstrap interval of the mean over seeds, over the test rows, with the same resamples for every model. It
  measures the uncertainty from the test rows. That from the seed is in "seeds +-", the standard deviation of the AP
  over seeds.
- minus {reference}: the difference in AP, with its 95% interval by paired bootstrap. If the interval contains 0, the
  difference is not significant.
- ECE: mean gap between probability and share of positives over {bins} bins with equal numbers of rows.
- CPU s: CPU seconds of the fit and all its processes, from the start of Python, including imports, reading and
  preparing the data. `*`: the budget ran out, and the best model until then is used.
- rows/s: test rows scored per second, from Parquet to probabilities; on small data sets mostly the start-up time.
- rounds: trees, epochs or iterations of the model kept; with one model per label, their mean.
- rank: mean rank by AP over the data sets. Normalised AP: 1 is the best model of a data set, 0 the AP of a random
  order (the prevalence). A model without a result on a data set is last there, with 0.
- {reference} wins/ties/losses: data sets on which the AP of {reference} is higher, not significantly different, or
  lower, by the 95% interval of the paired difference. "minus {reference}" over all data sets: mean difference in AP ±
  1.96 standard errors over data sets.
- relative CPU: geometric mean over data sets of the CPU seconds divided by those of {cpu_reference}.
"""


def markdown(sets: Sequence[Mapping[str, Any]], overall: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        sets: ``data`` (what is known of the data set) and ``rows`` (one a model) of each.
        overall: The models over all sets.
        facts: ``machine``, ``settings``, ``versions``, and maybe ``reference``, which the others are compared with.
    """
    reference = facts.get("reference", REFERENCE)
    parts = ["# Quality benchmark", _facts(facts), "![AP and CPU seconds](results.png)"]
    if len(sets) > 1:
        parts += ["## Over all data sets", overall_table(overall, reference)]
    for entry in sets:
        parts += [
            f"## {entry['data']['name']}",
            _describe(entry["data"], entry["rows"]),
            set_table(entry["rows"], reference),
        ]
        problems = [f"- {row['model']}: {problem}" for row in entry["rows"] for problem in row["problems"]]
        if problems:
            parts += ["Without a result:", "\n".join(problems)]
    guide = HOW_TO_READ.format(reference=reference, cpu_reference=CPU_REFERENCE, bins=CALIBRATION_BINS)
    return "\n\n".join([*parts, guide])


def _facts(facts: Mapping[str, Any]) -> str:
    settings = facts["settings"]
    budget = settings["max_cpu_seconds"]
    versions = ", ".join(f"{name} {found}" for name, found in sorted(facts["versions"].items()))
    return (
        f"Seeds: {settings['seeds']}. Threads: {settings['threads']}. "
        f"CPU seconds of a fit: {'no limit' if budget is None else f'at most {budget:g}'}. "
        f"Machine: {facts['machine']}. Versions: {versions}."
    )


def _describe(data: Mapping[str, Any], rows: Sequence[Row]) -> str:
    counts = "/".join(f"{data['rows'][split]:,}" for split in ("train", "valid", "test"))
    labels = counted(len(data["labels"]), "label")
    prevalence = next((f", {row['prevalence']:.1%} positive in test" for row in rows if row["status"] == OK), "")
    return (
        f"{counts} rows (train/valid/test, by {data['split_by']}), {len(data['numeric'])} numeric and "
        f"{len(data['categorical'])} categorical columns, {labels}{prevalence}."
    )


def overall_table(overall: Sequence[Row], reference: str = REFERENCE) -> str:
    """Return the models over all sets."""
    header = ["model", "data sets", "rank", "normalised AP", f"{reference} wins/ties/losses", f"minus {reference}"]
    header += ["relative CPU"]
    return table(
        header,
        [
            [
                row["model"],
                str(row["sets"]),
                f"{row['rank']:.2f}",
                _number(row["normalised"], ".3f"),
                *_against_reference(row),
                _number(row["cpu_ratio"], ".2f"),
            ]
            for row in overall
        ],
    )


def _against_reference(row: Row) -> tuple[str, str]:
    """Return the cells that compare a model with the reference, which is not compared with itself."""
    if row["difference"] is None:
        return NONE, NONE
    error = "" if row["difference_error"] is None else f" ± {1.96 * row['difference_error']:.4f}"
    return f"{row['wins']}/{row['ties']}/{row['losses']}", f"{row['difference']:+.4f}{error}"


def set_table(rows: Sequence[Row], reference: str = REFERENCE) -> str:
    """Return the models on one set, the best AP first, those without a result last."""
    good = sorted((row for row in rows if row["status"] == OK), key=lambda row: -row["average_precision"])
    header = ["model", "AP", "95%", f"minus {reference}", "seeds +-", "ROC AUC", "log loss", "ECE"]
    header += ["CPU s", "rows/s", "rounds"]
    lines = [_cells(row, best=row is good[0]) for row in good]
    lines += [[row["model"], row["status"], *[NONE] * (len(header) - 2)] for row in rows if row["status"] != OK]
    return table(header, lines)


def _cells(row: Row, *, best: bool) -> list[str]:
    ap = f"{row['average_precision']:.4f}" + r"\*" * row["capped"]
    difference = row["difference"]
    return [
        row["model"],
        f"**{ap}**" if best else ap,
        "{:.3f} to {:.3f}".format(*row["interval"]),
        "{:+.4f} ({:+.3f} to {:+.3f})".format(difference["value"], *difference["interval"]) if difference else NONE,
        _number(row["spread"], ".4f"),
        f"{row['roc_auc']:.4f}",
        f"{row['log_loss']:.4f}",
        f"{row['calibration_error']:.4f}",
        f"{row['cpu_seconds']:.0f}" + r"\*" * row["capped"],
        f"{row['rows_per_second']:,.0f}",
        f"{row['rounds']:.0f}",
    ]


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rule = "|---|" + "---:|" * (len(header) - 1)
    return "\n".join([f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])
