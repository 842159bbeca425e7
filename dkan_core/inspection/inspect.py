"""``inspect`` shows, before hours of training, the values, encoding and suspicious properties of each column."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dkan_core.config import PrepareConfig, check_config
from dkan_core.data.encoding.fitting import MAX_VOCABULARY
from dkan_core.data.format.manifest import manifest_text
from dkan_core.data.source.files import source_paths
from dkan_core.data.source.split_hints import split_warnings
from dkan_core.errors import ConfigError
from dkan_core.inspection.checks import count_distinct, find_auc, find_drift, label_suspicions, suspicions
from dkan_core.inspection.integer_codes import find_codes
from dkan_core.inspection.rows import UNLABELLED, InspectedRows, read_prepared, read_raw
from dkan_core.report.inline import inline_page
from dkan_core.report.templating import render_html
from dkan_core.utils.messages import brief, counted, one_line
from dkan_core.utils.storage.staging import staged_page

# Characters of names and types in the table for terminals.
TABLE_WIDTH = 40


@dataclass(frozen=True, kw_only=True)
class ColumnFindings:
    """Findings about a column."""

    name: str
    type: str
    becomes: str
    """Its role or encoding in ``prepare``, and why."""

    missing: float | None
    """Share of the rows; None where it was not read."""

    distinct: int | None
    """Different values in the sample of train."""

    roc_auc: float | None
    """ROC AUC of the column alone on valid, the largest over its features and labels. None without labels."""

    psi: float | None
    """Population stability index of valid against train, minus its expected value by chance."""

    suspicions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Result of an inspection."""

    where: str
    rows: dict[str, int]
    classes: dict[str, dict[str, dict[str, int]]]
    whole: bool
    """Whether distinct values, ROC AUC and PSI are of all rows rather than of a sample."""

    copies: float | None
    """About which share of the different rows of valid are copies of rows of train; None where it is not known."""

    columns: tuple[ColumnFindings, ...] = field(repr=False)

    warnings: tuple[str, ...] = ()
    """About the rows as a whole, as ``prepare`` gives them."""

    @property
    def suspicious(self) -> list[ColumnFindings]:
        """Columns with something suspicious."""
        return [column for column in self.columns if column.suspicions]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        heads = ("column", "type", "missing", "distinct", "AUC", "PSI", "becomes")
        cells = [(_cell(c.name), _cell(c.type), *_numbers(c, whole=self.whole), c.becomes) for c in self.columns]
        widths = [max(len(row[index]) for row in (heads, *cells)) for index in range(len(heads) - 1)]
        table = ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in (heads, *cells)]
        found = [f"{one_line(column.name)}: {'; '.join(column.suspicions)}" for column in self.suspicious]
        found += [f"warning: {text}" for text in self.warnings]
        if self.copies:
            found.append(f"valid: about {self.copies:.0%} of its different rows are copies of rows of train")
        return "\n".join([*self._balance(), "", *table, "", *(found or ["nothing suspicious"])])

    def _balance(self) -> list[str]:
        lines = []
        for split, rows in self.rows.items():
            shares = [
                f"{one_line(name)} {counts['1']:,} positive ({counts['1'] / max(1, counts['0'] + counts['1']):.2%})"
                + (f", {counts['null']:,} not measured" if counts["null"] else "")
                for name, counts in self.classes[split].items()
            ]
            lines.append(f"{split}: {counted(rows, 'row')}" + "".join(f"; {share}" for share in shares))
        return lines

    def save_page(self, file: str | Path, *, overwrite: bool = False) -> None:
        """Write the facts as an HTML page.

        Args:
            file: Path or URI of the page.
            overwrite: Whether an earlier page of dkan may be replaced.

        Raises:
            OutputError: It cannot be written.
        """
        with staged_page(file, overwrite=overwrite) as aside:
            aside.write_text(self.page, encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the page in a frame, which notebooks show."""
        return inline_page(self.page, "Inspection")

    @property
    def page(self) -> str:
        """All of it as one HTML page."""
        rows = sum(self.rows.values())
        copies = [("Copies", f"{self.copies:.0%}", "of the different rows of valid")] if self.copies else []
        return render_html(
            "inspection",
            title="Inspection",
            lead=self.where,
            facts=[
                ("Rows", f"{rows:,}", ", ".join(f"{split} {count:,}" for split, count in self.rows.items())),
                ("Columns", f"{len(self.columns):,}", ""),
                ("Suspicious", f"{len(self.suspicious):,}", "columns"),
                *copies,
            ],
            classes=self.classes,
            columns=[(column, _numbers(column, whole=self.whole)) for column in self.columns],
            whole=self.whole,
            warnings=self.warnings,
        )


def _cell(text: str) -> str:
    return brief(one_line(text), TABLE_WIDTH)


def _numbers(column: ColumnFindings, *, whole: bool) -> tuple[str, ...]:
    distinct = "-" if column.distinct is None else f"{'' if whole else '≥ '}{column.distinct:,}"
    missing = "-" if column.missing is None else f"{column.missing:.2%}"
    return missing, distinct, *("-" if value is None else f"{value:.3f}" for value in (column.roc_auc, column.psi))


def inspect_data(sources: str | Path | Sequence[str | Path], config: PrepareConfig | None = None) -> Inspection:
    """Inspect raw Parquet, read as by ``prepare``, or prepared data.

    Args:
        sources: Files, folders, globs or fsspec URIs of raw Parquet; or one folder or URI that ``prepare`` wrote.
        config: For raw Parquet, the roles of the columns and the split rule; its label may be ``UNLABELLED``. Default:
            no label.

    Returns:
        Rows, classes, and for each column its values, what it is encoded as, and what is suspicious about it.

    Raises:
        ConfigError: Settings are given for prepared data, or ``like`` is one of them.
        DataError: The data are not what was expected; the message names file and column.
    """
    chosen = source_paths(sources)
    prepared = [source for source in chosen if manifest_text(source) is not None]
    if prepared:
        if len(chosen) > 1 or config is not None:
            raise ConfigError(f"{prepared[0]}: is prepared data, which is inspected alone and without settings")
        return _inspect(read_prepared(prepared[0]))
    config = config or PrepareConfig(label=UNLABELLED)
    check_config(PrepareConfig, config)
    if config.like is not None:
        raise ConfigError("like: inspection shows what would be fitted; `dkan drift` compares with a model")
    return _inspect(read_raw(chosen, config))


def _inspect(rows: InspectedRows) -> Inspection:
    encoding, samples = rows.encoding, rows.samples
    valid = samples.get("valid")
    pairs = [samples["train"], valid] if valid is not None and len(valid) else None
    psi = find_drift(encoding, *pairs) if pairs else {}
    auc, codes = dict[str, float](), set[str]()
    if pairs and rows.labels:
        labels = [rows.labels_NL("train"), rows.labels_NL("valid")]
        auc, codes = find_auc(encoding, pairs, labels, rows.labels), find_codes(encoding, pairs, labels)
    columns = [_column(rows, name, auc, psi, codes) for name in rows.types]
    return Inspection(
        where=rows.where,
        rows=rows.rows,
        classes=rows.classes,
        whole=rows.whole,
        copies=rows.copies,
        columns=tuple(columns),
        warnings=tuple(split_warnings(rows.hints)),
    )


def _column(
    rows: InspectedRows, name: str, auc: Mapping[str, float], psi: Mapping[str, float], codes: Collection[str]
) -> ColumnFindings:
    """Return the findings about a column, given ROC AUC and PSI by feature, and the features that look like codes."""
    # The features that a source column becomes, or the feature of prepared data itself.
    parts = [name, *(part.name for part in rows.times.get(name, ()))]
    if name in rows.roles or name in rows.refused:
        # The column is no feature, but may have the same name as a part of a time.
        parts = []
    train = rows.samples["train"]
    column = train[name] if name in rows.missing else None
    largest_auc, largest_psi = (
        max((known[part] for part in parts if part in known), default=None) for known in (auc, psi)
    )
    distinct = 0 if column is None else count_distinct(column)
    found = []
    if column is not None:
        found = suspicions(
            name,
            column,
            distinct=distinct,
            auc=largest_auc,
            psi=largest_psi,
            is_code=name in rows.codes,
            looks_like_code=name in codes,
        )
    if name in rows.labels:
        classes = {split: of[name] for split, of in rows.classes.items()}
        found = label_suspicions(classes, rows.positive.get(name), rows.others.get(name, {}))
    return ColumnFindings(
        name=name,
        type=rows.types[name],
        becomes=_becomes(rows, name),
        missing=rows.missing[name] / rows.counted if name in rows.missing else None,
        distinct=None if column is None or name in rows.inexact else distinct,
        roc_auc=largest_auc,
        psi=largest_psi,
        suspicions=tuple(found),
    )


def _becomes(rows: InspectedRows, name: str) -> str:
    """Return a column's role or encoding in ``prepare``, and why."""
    if name in rows.roles:
        return rows.roles[name]
    if name in rows.refused:
        return f"rejected: {rows.refused[name]}"
    if name in rows.times:
        return f"numbers: {', '.join(part.time.part for part in rows.times[name] if part.time is not None)}"
    coded = rows.coded.get(name)
    size = 0 if coded is None else len(coded.vocabulary)
    if coded is not None and coded.kind == "category":
        is_full = size >= MAX_VOCABULARY
        rest = "all others are unseen" if is_full else "those that occur once are unseen"
        rest = f"others share {coded.buckets} by hash" if coded.buckets else rest
        more = "at least " if rows.estimated and not is_full and not coded.buckets else ""
        return f"codes of {more}{counted(size, 'value')}; {rest}"
    if size:
        about = "about " if rows.estimated else ""
        return f"normal score, and codes of {about}{counted(size, 'frequent value')}"
    return "normal score" if coded is None else "normal score, and a code for missing"
