"""What a model learned as HTML: the page of ``dkan explain``, and a section of the report."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from dkan_core.explanation.curves import Curve
from dkan_core.explanation.drawings import Drawings, LabelDrawings, draw_curves
from dkan_core.explanation.explanation import Explanation
from dkan_core.explanation.figures.curves import departing_marks
from dkan_core.explanation.figures.drawing import Drawing, percent, short
from dkan_core.explanation.figures.heatmaps import MapCell, map_cells, with_error
from dkan_core.explanation.figures.importance import MAX_BARS, draw_importance
from dkan_core.explanation.interactions import ROUNDING, PairMap
from dkan_core.explanation.label_explanation import LabelExplanation
from dkan_core.explanation.term_tables import TermTable, weighted_deviation
from dkan_core.report.figures.canvas import HINT_LENGTH
from dkan_core.report.figures.svg import page_element
from dkan_core.report.templating import Card, inline_script, render_html
from dkan_core.utils.messages import some_of

# Rows of the searchable table, over all labels: with more, a browser takes seconds to search. ``explanation.json`` has
# them all.
TABLE_ROWS = 5000
# Labels with a panel: each has a dozen figures, some 300 KB, and the report has as many.
LABEL_PANELS = 30
# With fewer columns, no search field is needed.
LEAST_TO_FIND = 8
# Cells of terms, over all labels: 65 terms of flight data, half of them pairs, have 20,000. ``explanation.json`` has
# them all.
TERM_CELLS = 60_000
# The markup around a table takes as much space as so many cells.
CELLS_AROUND = 20
# Columns with changed effects, and names of columns that only one model reads, to show.
SHIFT_ROWS = 12
# Bars in the section of the report.
SECTION_BARS = 10
# Rows of the table of pairs.
PAIR_ROWS = 10
# Columns in the table of all labels.
COMPARED_COLUMNS = 20
# Below it, a formula is not shown: of 32 curves of four data sets, six had less, all of them with several bends.
LEAST_R2 = 0.8
# Share of the summed squared effects; the page says how many columns make it up.
EFFECT_SHARE = 0.9


def render_explanation(found: Explanation, drawings: Drawings) -> Markup:
    """Return the page of ``dkan explain``; every name is escaped.

    Args:
        found: What was read from the model.
        drawings: Its figures.
    """
    overview = drawings.overview
    names = list(found.labels)[:LABEL_PANELS]
    return render_html(
        "explanation",
        title=f"What the model learned: {some_of([*found.labels])}",
        lead=f"{found.rows:,} rows of the {found.split} split, {len(found.importance):,} columns"
        + (f", {len(found.labels):,} labels" if overview else ""),
        overview=_overview(found, overview, names) if overview else None,
        panels=[_panel(found.labels[name], drawings.labels[name], TERM_CELLS // len(names)) for name in names],
        hidden_labels=len(found.labels) - len(names),
        table_rows=TABLE_ROWS // len(names),
        least_to_find=LEAST_TO_FIND,
        script=inline_script("columns.js", "hints.js"),
        percent=percent,
        with_error=with_error,
        before_rows=SHIFT_ROWS,
    )


def _overview(found: Explanation, drawing: Drawing, names: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows of all labels together."""
    shown = found.importance[:COMPARED_COLUMNS]
    effects = {
        name: {importance.name: importance.effect for importance in found.labels[name].importance} for name in names
    }
    text = f"The strongest columns of {len(found.importance):,}, mean over {len(found.labels):,} labels."
    return {
        "facts": [("Labels", f"{len(found.labels):,}", "each explained by itself"), *_facts(found)],
        "card": ("Importance", text, page_element(drawing.svg, "Importance, mean over labels")),
        "names": names,
        "rows": [(column.name, column.effect, [effects[name][column.name] for name in names]) for column in shown],
        "largest": max((effect for by_name in effects.values() for effect in by_name.values()), default=0.0) or 1.0,
    }


def _panel(found: LabelExplanation, drawings: LabelDrawings, cells: int) -> dict[str, Any]:
    """Return what the page shows of a label, with so many numbers of its terms at most."""
    terms, shown = found.terms or [], []
    for term in terms:
        # The table of a term with sharp effects may be too large for a page.
        room = term.cells + CELLS_AROUND
        if term.strength > ROUNDING and room <= cells:
            shown.append(_term(term))
            cells -= room
    return {
        "name": found.label,
        "facts": _facts(found),
        "importance_card": _importance_card(found, drawings.importance, min(found.shown, MAX_BARS)),
        "importance": found.importance,
        "curve_cards": [*zip(found.curves, _curve_cards(found, drawings.curves), strict=True)],
        "ids": found.ids,
        "additive": found.intercept is not None,
        "intercept": found.intercept,
        "terms": shown,
        "other_terms": len(terms) - len(shown),
        "pairs": found.interactions[:PAIR_ROWS],
        "other_pairs": len(found.interactions[PAIR_ROWS:]),
        "map_cards": [_map_card(pair, drawing) for pair, drawing in zip(found.maps, drawings.maps, strict=True)],
        "against": found.against,
    }


def _term(term: TermTable) -> dict[str, Any]:
    """Return what the page shows of a term: its values with training rows, those of a pair as a map."""
    log_odds, rows = np.array(term.log_odds), np.array(term.rows)
    kept = [np.flatnonzero(rows.sum(axis=tuple({*range(rows.ndim)} - {side}))) for side in range(rows.ndim)]
    log_odds, rows = log_odds[np.ix_(*kept)], rows[np.ix_(*kept)]
    names = [[bins[index].name for index in indices] for bins, indices in zip(term.bins, kept, strict=True)]
    largest = float(np.abs(log_odds[rows > 0]).max(initial=0.0)) or 1.0
    return {
        "name": " × ".join(term.columns),
        "columns": term.columns,
        "strength": term.strength,
        "names": names,
        "log_odds": log_odds.tolist(),
        "rows": rows.tolist(),
        "largest": largest,
    }


def render_section(found: LabelExplanation, rows: int) -> Markup:
    """Return a report's section on what the model learned about a label: importances and curves.

    Args:
        found: What was read from the model.
        rows: From how many rows.
    """
    importance = draw_importance(found.importance[:SECTION_BARS])
    cards = [_importance_card(found, importance, SECTION_BARS), *_curve_cards(found, draw_curves(found))]
    return render_html(
        "explanation_section",
        label=found.label,
        additive=found.intercept is not None,
        rows=rows,
        cards=cards,
        ids=found.ids,
        against=found.against,
        before_rows=SHIFT_ROWS,
        percent=percent,
    )


def _importance_card(found: LabelExplanation, drawing: Drawing, bars: int) -> Card:
    text = f"The strongest {min(len(found.importance), bars)} of {len(found.importance):,} columns, for {found.label}."
    return ("Importance", text, page_element(drawing.svg, "Importance"))


def _facts(found: Explanation | LabelExplanation) -> list[tuple[str, str, str]]:
    best = found.importance[0]
    facts = [("Strongest column", _size(best.effect), f"log-odds: {best.name}")]
    if isinstance(found, LabelExplanation) and found.interactions:
        pair = found.interactions[0]
        facts.append(("Strongest pair", _size(pair.strength), f"log-odds: {pair.first} × {pair.second}"))
    # Squared, because variances add up and effects do not.
    most = _columns_for([importance.effect**2 for importance in found.importance])
    facts.append((f"Columns for {EFFECT_SHARE:.0%}", f"{most:,}", "of the summed squared effects"))
    if found.average_precision is not None:
        facts.append(("Average precision", f"{found.average_precision:.4f}", "on these rows"))
    return facts


def _size(effect: float) -> str:
    """Write an effect with two decimals, or with two digits where it is small.

    >>> _size(1.234), _size(0.0024)
    ('1.23', '0.0024')
    """
    return f"{effect:.2f}" if effect >= 0.1 else f"{effect:.2g}"


def _columns_for(squares: Sequence[float]) -> int:
    """Return how many of the falling values make up ``EFFECT_SHARE`` of their sum.

    >>> _columns_for([8.0, 1.5, 0.5])
    2
    """
    summed = np.cumsum(squares)
    return int(np.searchsorted(summed, EFFECT_SHARE * summed[-1])) + 1


def _curve_cards(found: LabelExplanation, drawings: Sequence[Drawing]) -> list[Card]:
    effects = {importance.name: importance.effect for importance in found.importance}
    return [
        (
            curve.name,
            _about_curve(curve, effects[curve.name]),
            page_element(drawing.svg, _spoken(curve)),
        )
        for curve, drawing in zip(found.curves, drawings, strict=True)
    ]


def _spoken(curve: Curve) -> str:
    """Return what a screen reader says of a curve: where it is lowest and highest."""
    shown = curve.of("curve", "level") or curve.points
    low, high = min(shown, key=lambda point: point.mean), max(shown, key=lambda point: point.mean)
    lowest, highest = (short(point.name, HINT_LENGTH) for point in (low, high))
    ends = f"lowest {low.mean:+.2f} at {lowest}, highest {high.mean:+.2f} at {highest}"
    return f"Effect of {curve.name}: {ends}"


def _about_curve(curve: Curve, effect: float) -> str:
    # The figure shows only the column's own effect, which may be small beside its total effect with others.
    parts = [f"Effect {effect:.2f} log-odds; alone, as the figure shows, {min(effect, effect_alone(curve)):.2f}."]
    if curve.formula is not None and curve.formula.r2 >= LEAST_R2:
        parts.append(f"About {curve.formula.text} (R² {curve.formula.r2:.2f}).")
    if departing_marks(curve):
        parts.append("Orange: frequent values with an effect of their own.")
    # Otherwise a reader would think that these are all levels.
    if curve.shape == "levels" and curve.hidden_rows:
        shown = sum(point.rows for point in curve.points)
        parts.append(
            f"The most frequent levels; {percent(curve.hidden_rows / (shown + curve.hidden_rows))} have others."
        )
    return " ".join(parts)


def effect_alone(curve: Curve) -> float:
    """Return the standard deviation over rows of what a column does by itself: the effect that its figure shows."""
    rows = np.array([point.rows for point in curve.points], dtype=np.float64)
    means = np.array([point.mean for point in curve.points])
    return weighted_deviation(means, rows)


def _map_card(pair: PairMap, drawing: Drawing) -> tuple[PairMap, list[MapCell], Card]:
    """Return a map, its cells that have rows, and its card."""
    text = "Orange raises the log-odds, blue lowers them. Dots: no row has such values."
    cells = [cell for cell in map_cells(pair) if cell.rows]
    names = f"{pair.first.name} × {pair.second.name}"
    return pair, cells, (names, text, page_element(drawing.svg, _spoken_map(names, cells)))


def _spoken_map(names: str, cells: Sequence[MapCell]) -> str:
    """Return what a screen reader says of a map: where it is lowest and highest, and the part beyond the sum."""
    if not cells:
        return f"Effect of {names}: no row has values of both"
    low, high = min(cells, key=lambda cell: cell.joint), max(cells, key=lambda cell: cell.joint)
    ends = ", ".join(
        f"{which} {cell.joint:+.2f} at {short(cell.first, HINT_LENGTH)} and {short(cell.second, HINT_LENGTH)}"
        for which, cell in (("lowest", low), ("highest", high))
    )
    own = [cell.own for cell in cells]
    return f"Effect of {names}: {ends}; beyond the sum of the two {min(own):+.2f} to {max(own):+.2f}"
