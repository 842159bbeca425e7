"""``dkan train``: prepared data to a model."""

import shlex
from contextlib import suppress
from typing import Annotated, Any, Literal

import typer

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import (
    ConfigFile,
    DryRun,
    JsonFile,
    Out,
    Overwrite,
    Prepared,
    command,
    merged_settings,
    option,
)
from dkan_core.cli.results import fail, result_printer, suggest
from dkan_core.errors import ConfigError, DataError


@command(
    app,
    settings="TrainConfig",
    panel=PANEL,
    examples=[
        "dkan train prepared --out run",
        "dkan train prepared --out run --config train.toml --epochs 20 --resume auto",
        "dkan train prepared --out run --device cuda:0,cuda:1 --precision bf16 --max-seconds 3600",
        "dkan train prepared-new --out run-new --init-from run/model",
    ],
)
def train(
    prepared: Prepared,
    out: Out,
    overwrite: Overwrite = False,
    launch: Annotated[
        Literal["torchrun"] | None,
        option(
            "--launch",
            help="Train with several processes that this launcher starts; --dry-run prints its command. Default: none.",
            group="Distribution",
        ),
    ] = None,
    nproc: Annotated[
        int | None,
        option("--nproc", help="Processes that --launch starts here. Default: one per GPU.", group="Distribution"),
    ] = None,
    dry_run: DryRun = False,
    json_file: JsonFile = None,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model, evaluating it in parallel, and keep the one with the best validation average precision (AP)."""
    from dkan_core.cli.launching import end_with_torchrun, replace_process, torchrun_command
    from dkan_core.data.format.manifest import check_is_prepared
    from dkan_core.training.launcher.fork_server_start import fork_ahead

    end_with_torchrun()
    out = out.rstrip("/") or out  # in a bucket, a//b is another place than a/b
    merged = merged_settings(dkan_core.TrainConfig, config, settings)
    # Checked before the import of torch, which takes a second.
    check_is_prepared(prepared)
    if launch is None and nproc is not None:
        raise ConfigError(
            f"nproc {nproc}: is for --launch torchrun; without it, --workers sets the number of processes"
        )
    if launch is not None:
        if json_file is not None:
            raise ConfigError(f"--json: with --launch, the result is in {out}/metrics.json; leave it out")
        launched = torchrun_command(prepared, out, merged, nproc, overwrite=overwrite)
        if not dry_run:
            replace_process(launched)
        typer.echo(shlex.join(launched))
        return
    with result_printer(json_file, out=out, overwrite=overwrite or merged.resume != "never") as show:
        if dry_run:
            from dkan_core.cli.dry_run import describe_training

            would = describe_training(prepared, out, merged, overwrite=overwrite)
            show({"would": would.splitlines()}, would)
            return
        try:
            with fork_ahead():
                result = dkan_core.train(prepared, out, merged, overwrite=overwrite)
        except KeyboardInterrupt:
            begun = f"if training had begun, its best model so far, if any, is in {out}/model"
            fail(f"interrupted; {begun}; if not, what was there is as it was", 130)
        show({"model": result.model, "checkpoint": result.checkpoint, **result.metrics})
    if result.metrics["training"]["ended"] == "interrupt":
        fail(f"interrupted; the best model so far is in {out}/model; {result.next_step}", 130)
    suggest("dkan", "evaluate", f"{out}/model", prepared, *_split_option(prepared), "--out", "eval")


def _split_option(prepared: str) -> list[str]:
    """Return the option that names the split to evaluate on, where there is no test split."""
    from dkan_core.data.format.manifest import read_manifest
    from dkan_core.utils.storage.paths import is_remote, local_path

    has_test = True
    with suppress(DataError):  # the model is trained, even if the data are gone by now
        has_test = is_remote(prepared) or "test" in read_manifest(local_path(prepared)).splits
    return [] if has_test else ["--split", "valid"]
