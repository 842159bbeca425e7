"""What a model learned as HTML: the page of ``dkan explain``, and a section of the report."""

import html
from collections.abc import Sequence

from dkan_core.explanation.curves import Curve
from dkan_core.explanation.drawings import Drawing, departing_marks, percent
from dkan_core.explanation.importance import Importance
from dkan_core.explanation.interactions import Interaction, PairMap
from dkan_core.explanation.learned import Explanation
from dkan_core.report import page
from dkan_core.report.figures import page_element

TABLE_ROWS = 60
PAIR_ROWS = 10
TO_THE_CURVE = (
    "Line or dot: mean effect. Band: 10% to 90% of the rows; where it is wide, other columns change the effect."
)


def render_explanation(
    found: Explanation, importance: Drawing, curves: Sequence[Drawing], maps: Sequence[Drawing]
) -> str:
    """Return the page of ``dkan explain``; every name is escaped."""
    body = [
        page.tiles(_facts(found)),
        "<h2>Which columns count</h2>",
        page.note(_importance_note()),
        page.cards(
            [
                (
                    "Importance",
                    _of_labels(found, len(found.curves)),
                    page_element(importance.svg, "importance", "Importance"),
                )
            ]
        ),
        _importance_table(found.importance),
        "<h2>What each column does</h2>",
        page.note(_curve_note(found)),
        _curve_cards(found, curves),
    ]
    if found.interactions:
        body += ["<h2>What pairs do together</h2>", page.note(_pair_note()), _pair_table(found.interactions)]
        body += [_map_card(place, *items) for place, items in enumerate(zip(found.maps, maps, strict=True))]
    return page.render_page(
        title=f"What the model learned: {found.label}",
        lead=f"{found.rows:,} rows of the {found.split} split, {len(found.importance):,} columns",
        body="\n".join(body),
    )


def render_section(found: Explanation, importance: Drawing, bars: int, curves: Sequence[Drawing]) -> str:
    """Return the report's section: importance, drawn as ``bars`` bars, and the first curves."""
    card = ("Importance", _of_labels(found, bars), page_element(importance.svg, "learned", "Importance"))
    more = "dkan explain adds the loss of average precision without a column, more curves, and pairs."
    return (
        "<h2>What the model learned</h2>"
        + page.note(f"{_curve_note(found)} Read on {found.rows:,} rows; {more}")
        + _curve_cards(found, curves, [card])
    )


def _facts(found: Explanation) -> list[tuple[str, str, str]]:
    best = found.importance[0]
    facts = [("Strongest column", f"{best.effect:.2f}", f"log-odds: {html.escape(best.name)}")]
    if found.interactions:
        pair = found.interactions[0]
        names = html.escape(f"{pair.first} × {pair.second}")
        facts.append(("Strongest pair", f"{pair.strength:.2f}", f"log-odds: {names}"))
    most = _columns_for([importance.effect**2 for importance in found.importance])
    facts.append(("Columns for 90%", f"{most:,}", "of the summed squared effects"))
    if found.average_precision is not None:
        facts.append(("Average precision", f"{found.average_precision:.4f}", "on these rows"))
    return facts


def _columns_for(squares: Sequence[float], share: float = 0.9) -> int:
    """Return how many of the falling values make up a share of their sum.

    >>> _columns_for([8.0, 1.5, 0.5])
    2
    """
    total, summed = sum(squares), 0.0
    for count, square in enumerate(squares, 1):
        summed += square
        if summed >= share * total:
            return count
    return len(squares)


def _of_labels(found: Explanation, bars: int) -> str:
    return f"The strongest {min(len(found.importance), bars)} of {len(found.importance):,} columns, " + (
        f"mean over {len(found.importance_labels)} labels."
        if len(found.importance_labels) > 1
        else f"for {html.escape(found.importance_labels[0])}."
    )


def _importance_note() -> str:
    return (
        "Effect: how far the log-odds move when a row gets the value of another row, as a standard deviation; alone "
        "and together with other columns. Average precision lost: when the column is shuffled, mean and standard "
        "error over shuffles. Gradient × spread: how steep the log-odds are along a number's normal score, times the "
        "score's standard deviation; codes have no gradient. Columns that say the same share their importance."
    )


def _curve_note(found: Explanation) -> str:
    return (
        f"The effect of a value on the log-odds of {found.label}, against the average over the column's values, all "
        f"else as it is. {TO_THE_CURVE} Grey: where the rows are."
    )


def _pair_note() -> str:
    return (
        "Strength: the standard deviation, in log-odds, of what a pair does beyond the sum of its two columns' own "
        "effects. Share: that part of the pair's whole variance."
    )


def _importance_table(ranked: Sequence[Importance]) -> str:
    largest = ranked[0].effect or 1.0
    rows = []
    for place, importance in enumerate(ranked[:TABLE_ROWS], 1):
        drop = "–"
        if importance.precision_drop is not None:
            drop = f"{importance.precision_drop:.4f} ± {importance.precision_drop_error:.4f}"
        slope = "–" if importance.slope is None else f"{importance.slope:.3f}"
        bar = f'<span class="bar"><i style="width:{100 * importance.effect / largest:.1f}%"></i></span>'
        rows.append(
            f'<tr><td class="name">{place}. {html.escape(importance.name)}</td><td>{importance.kind}</td>'
            f"<td>{bar}{importance.effect:.3f} ± {importance.effect_error:.3f}</td><td>{drop}</td>"
            f"<td>{slope}</td></tr>"
        )
    left_out = len(ranked) - len(rows)
    more = page.note(f"{left_out:,} more columns are in explanation.json.", left_out > 0)
    heads = ("Column", "Kind", "Effect, in log-odds", "Average precision lost", "Gradient × spread, in log-odds")
    shown = page.table(heads, rows) + more
    summary = f"<summary><b>All columns</b><span>{len(ranked):,}</span></summary>"
    return f'<details>{summary}<div class="inside">{shown}</div></details>'


def _curve_cards(found: Explanation, drawings: Sequence[Drawing], before: Sequence[tuple[str, str, str]] = ()) -> str:
    effects = {importance.name: importance.effect for importance in found.importance}
    cards = [
        (
            html.escape(curve.name),
            _about_curve(curve, effects[curve.name]),
            page_element(drawing.svg, f"curve-{place}", f"Effect of {curve.name}"),
        )
        for place, (curve, drawing) in enumerate(zip(found.curves, drawings, strict=True))
    ]
    return page.cards([*before, *cards])


def _about_curve(curve: Curve, effect: float) -> str:
    parts = [f"Effect {effect:.2f} log-odds."]
    if departing_marks(curve):
        parts.append("Orange: frequent values that the model treats apart.")
    if curve.shape == "levels" and curve.hidden_rows:
        shown = sum(point.rows for point in curve.points)
        parts.append(
            f"The most frequent levels; {percent(curve.hidden_rows / (shown + curve.hidden_rows))} have others."
        )
    return " ".join(parts)


def _pair_table(pairs: Sequence[Interaction]) -> str:
    largest = pairs[0].strength or 1.0
    rows = [
        f'<tr><td class="name">{html.escape(pair.first)} × {html.escape(pair.second)}</td><td><span class="bar">'
        f'<i style="width:{100 * pair.strength / largest:.1f}%"></i></span>{pair.strength:.3f}</td>'
        f"<td>{percent(pair.share)}</td></tr>"
        for pair in pairs[:PAIR_ROWS]
    ]
    return page.table(("Pair", "Strength, in log-odds", "Share"), rows)


def _map_card(place: int, pair: PairMap, drawing: Drawing) -> str:
    names = f"{pair.first.name} × {pair.second.name}"
    text = "Orange raises the log-odds, blue lowers them. Dots: no row has such values."
    card = (html.escape(names), text, page_element(drawing.svg, f"map-{place}", f"Effect of {names}"))
    return page.cards([card])
