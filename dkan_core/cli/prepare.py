"""``dkan prepare``: raw Parquet to shards."""

from typing import Annotated, Any

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import ConfigFile, DryRun, JsonFile, Overwrite, Sources, command, merged_settings, option
from dkan_core.cli.results import result_printer, suggest
from dkan_core.errors import ConfigError


@command(
    app,
    settings="PrepareConfig",
    panel=PANEL,
    examples=[
        "dkan prepare flights --out prepared --label label --split-column split --group date",
        "dkan prepare 's3://bucket/rows/*.parquet' --out prepared --label bought --label returned --group user",
        "dkan prepare new.parquet --out prepared-new --like run/model",
        "dkan prepare new.parquet --append prepared --like run/model",
    ],
)
def prepare(
    sources: Sources,
    out: Annotated[
        str | None, option("--out", help="Folder or fsspec URI to write the results to. Default: none.", group="Output")
    ] = None,
    append: Annotated[
        str | None,
        option(
            "--append",
            help="Prepared folder or URI to add the rows to, with its encoding, labels and splits. Default: none.",
            group="Output",
        ),
    ] = None,
    overwrite: Overwrite = False,
    workers: Annotated[
        int | None,
        option(
            "--workers",
            help="Number of parts to prepare at once. With 1 or more, repeating a command that was killed continues "
            "it; 0 prepares all rows in one pass, which costs less. The result is the same, and all cores are used. "
            "Default: 1 for 5 billion values or more, 20 GB as float32; else 0.",
            group="Output",
        ),
    ] = None,
    dry_run: DryRun = False,
    json_file: JsonFile = None,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Turn Parquet into shuffled, encoded shards and a manifest."""
    from dkan_core.cli.dry_run import describe_append, describe_preparation
    from dkan_core.cli.label_candidates import settings_with_label

    with result_printer(json_file, out=append or out, overwrite=overwrite) as show:
        if append is not None:
            others = {"--overwrite": overwrite, "--workers": workers, "--config": config}
            _check_append(append, out, [name for name, value in others.items() if value], settings)
            if dry_run:
                would = describe_append(sources, append, **settings)
                show({"would": would.splitlines()}, would)
                return
            dkan_core.append_rows(sources, append, **settings)
            show({"prepared": append})
            return
        if out is None:
            raise ConfigError(
                "give --out, a folder or URI for the result, or --append, prepared data to add the rows to"
            )
        merged = merged_settings(dkan_core.PrepareConfig, config, settings_with_label(settings, config, sources))
        if dry_run:
            would = describe_preparation(sources, out, merged, overwrite=overwrite)
            show({"would": would.splitlines()}, would)
            return
        made = dkan_core.prepare(sources, out, merged, overwrite=overwrite, workers=workers)
        show({"prepared": out, **made.summary()})
        suggest("dkan", "train", out, "--out", "run")


def _check_append(prepared: str, out: str | None, others: list[str], settings: dict[str, Any]) -> None:
    if out is not None:
        raise ConfigError("give --out or --append, not both")
    if others:
        raise ConfigError(f"--append takes no {others[0]}: appended rows are prepared in one pass")
    fixed = [name for name in settings if name not in ("like", "drop")]
    if fixed:
        raise ConfigError(f"{fixed[0]}: --append uses the setting of {prepared}; leave it out")
