"""``dkan drift``: how far new rows are from the training rows."""

from contextlib import nullcontext
from typing import Annotated

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import HtmlFile, JsonFile, Model, Overwrite, Sources, check_models, command, option
from dkan_core.cli.results import result_printer


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan drift run/model new.parquet --html drift.html",
        "dkan drift run/model new.parquet --max-psi 0.25 --json drift.json",
    ],
)
def drift(
    model: Model,
    sources: Sources,
    max_psi: Annotated[
        float,
        option("--max-psi", help="Exit with code 1 if any population stability index exceeds this; 0 sets no limit."),
    ] = 0.0,
    html: HtmlFile = None,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Measure how far raw Parquet, and the model's scores on it, have drifted from the training data."""
    from dkan_core.evaluation.drift.measures import check_max_psi
    from dkan_core.utils.storage.staging import staged_page

    check_max_psi(max_psi)
    check_models(model, sources=sources)
    staged = staged_page(html, overwrite=overwrite) if html else nullcontext()
    with result_printer(json_file, overwrite=overwrite) as show, staged as aside:
        summary = dkan_core.summarize_drift(model, sources)
        if aside:
            aside.write_text(summary.page, encoding="utf-8")
        show(summary.drift.to_dict(), summary.drift)
    summary.drift.check(max_psi)
