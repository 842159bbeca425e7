"""``dkan inspect``: what data hold, before training."""

from contextlib import nullcontext
from typing import Annotated, Any

import typer

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import ConfigFile, HtmlFile, JsonFile, Overwrite, command, merged_settings
from dkan_core.cli.results import result_printer


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
    from dkan_core.utils.storage.staging import staged_page

    unlabelled = {} if config is not None else {"label": [*UNLABELLED]}
    merged = merged_settings(dkan_core.PrepareConfig, config, {**unlabelled, **settings})
    staged = staged_page(html, overwrite=overwrite) if html else nullcontext()
    with result_printer(json_file, overwrite=overwrite) as show, staged as aside:
        found = dkan_core.inspect_data(data, merged if settings or config else None)
        if aside:
            aside.write_text(found.page, encoding="utf-8")
        show(found.to_dict(), found)
