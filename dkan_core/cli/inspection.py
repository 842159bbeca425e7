"""``dkan inspect`` and ``dkan drift``: look at data before training, and compare new rows with the training rows."""

import functools
from typing import Annotated, Any

import typer

import dkan_core
from dkan_core.cli.options import (
    ConfigFile,
    JsonFile,
    Model,
    Overwrite,
    Sources,
    check_models,
    command,
    merged_settings,
    option,
)
from dkan_core.cli.results import result_printer
from dkan_core.cli.workflow import PANEL, app

HtmlFile = Annotated[
    str | None, option("--html", help="File to write the result to as a page. Default: none.", group="Output")
]


@command(
    app,
    settings="PrepareConfig",
    panel=PANEL,
    examples=["dkan inspect flights --label label --html inspection.html", "dkan inspect prepared --json facts.json"],
)
def inspect(
    data: Annotated[list[str], typer.Argument(metavar="SRC|DIR", help="Raw Parquet, or a prepared folder.")],
    html: HtmlFile = None,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Show schema, class balance, what each column will become, and which columns are suspicious."""
    from dkan_core.inspection.rows import UNLABELLED
    from dkan_core.utils.storage.outputs import check_page_free

    unlabelled = {} if config is not None else {"label": [*UNLABELLED]}
    merged = merged_settings(dkan_core.PrepareConfig, config, {**unlabelled, **settings})
    with result_printer(json_file, overwrite=overwrite) as show:
        if html:
            check_page_free(html, overwrite=overwrite)
        found = dkan_core.inspect_data(data, merged if settings or config else None)
        if html:
            found.save_page(html, overwrite=overwrite)
        show(found.to_dict(), found)


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
    from dkan_core.utils.storage.outputs import check_page_free
    from dkan_core.utils.storage.staging import staged_file

    check_max_psi(max_psi)
    check_models(model, sources=sources)
    with result_printer(json_file, overwrite=overwrite) as show:
        if html:
            check_page_free(html, overwrite=overwrite)
        summary = dkan_core.summarize_drift(model, sources)
        if html:
            with staged_file(html, functools.partial(check_page_free, html, overwrite=overwrite)) as aside:
                aside.write_text(summary.page, encoding="utf-8")
        show(summary.drift.to_dict(), summary.drift)
    summary.drift.check(max_psi)
