"""What a model learned as HTML: the page of ``dkan explain``, and a section of the report."""

from collections.abc import Sequence

from markupsafe import Markup

from dkan_core.explanation.curves import Curve
from dkan_core.explanation.drawings import Drawing, departing_marks, percent
from dkan_core.explanation.interactions import PairMap
from dkan_core.explanation.learned import Explanation
from dkan_core.report.figures import page_element
from dkan_core.report.templating import Card, render_html

# A page of a thousand columns would be a list of zeros; all of them are in ``explanation.json``.
TABLE_ROWS = 60
# Of the 28 pairs at most.
PAIR_ROWS = 10


def render_explanation(
    found: Explanation, importance: Drawing, curves: Sequence[Drawing], maps: Sequence[Drawing]
) -> Markup:
    """Return the page of ``dkan explain``; every name is escaped.

    Args:
        found: What was read from the model.
        importance: Its importances as bars.
        curves: A drawing for each of its curves.
        maps: A drawing for each of its maps.
    """
    return render_html(
        "explanation",
        title=f"What the model learned: {found.label}",
        lead=f"{found.rows:,} rows of the {found.split} split, {len(found.importance):,} columns",
        label=found.label,
        facts=_facts(found),
        importance_card=_importance_card(found, "importance", importance, len(found.curves)),
        importance=found.importance,
        table_rows=TABLE_ROWS,
        curve_cards=_curve_cards(found, curves),
        percent=percent,
        pairs=found.interactions[:PAIR_ROWS],
        map_cards=_map_cards(found.maps, maps),
    )


def render_section(found: Explanation, importance: Drawing, bars: int, curves: Sequence[Drawing]) -> Markup:
    """Return the report's section: importances and curves.

    Args:
        found: What was read from the model.
        importance: Its importances as bars.
        bars: How many bars there are, at most.
        curves: A drawing for each of its curves.
    """
    cards = [_importance_card(found, "learned", importance, bars), *_curve_cards(found, curves)]
    return render_html("learned", label=found.label, rows=found.rows, cards=cards)


def _importance_card(found: Explanation, key: str, drawing: Drawing, bars: int) -> Card:
    return ("Importance", _of_labels(found, bars), page_element(drawing.svg, key, "Importance"))


def _facts(found: Explanation) -> list[tuple[str, str, str]]:
    best = found.importance[0]
    facts = [("Strongest column", f"{best.effect:.2f}", f"log-odds: {best.name}")]
    if found.interactions:
        pair = found.interactions[0]
        facts.append(("Strongest pair", f"{pair.strength:.2f}", f"log-odds: {pair.first} × {pair.second}"))
    # Squared, as variances add up where effects do not.
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
        else f"for {found.importance_labels[0]}."
    )


def _curve_cards(found: Explanation, drawings: Sequence[Drawing]) -> list[Card]:
    effects = {importance.name: importance.effect for importance in found.importance}
    return [
        (
            curve.name,
            _about_curve(curve, effects[curve.name]),
            page_element(drawing.svg, f"curve-{place}", f"Effect of {curve.name}"),
        )
        for place, (curve, drawing) in enumerate(zip(found.curves, drawings, strict=True))
    ]


def _about_curve(curve: Curve, effect: float) -> str:
    parts = [f"Effect {effect:.2f} log-odds."]
    if departing_marks(curve):
        parts.append("Orange: frequent values that the model treats apart.")
    # Else a reader would take the bars for all there is.
    if curve.shape == "levels" and curve.hidden_rows:
        shown = sum(point.rows for point in curve.points)
        parts.append(
            f"The most frequent levels; {percent(curve.hidden_rows / (shown + curve.hidden_rows))} have others."
        )
    return " ".join(parts)


def _map_cards(pairs: Sequence[PairMap], drawings: Sequence[Drawing]) -> list[Card]:
    text = "Orange raises the log-odds, blue lowers them. Dots: no row has such values."
    cards = []
    for place, (pair, drawing) in enumerate(zip(pairs, drawings, strict=True)):
        names = f"{pair.first.name} × {pair.second.name}"
        cards.append((names, text, page_element(drawing.svg, f"map-{place}", f"Effect of {names}")))
    return cards
