"""``dkan tune-lr``, ``plan`` and ``bench``: measurements before a long run."""

from typing import Annotated, Any

import typer

import dkan_core
from dkan_core.cli.app import app
from dkan_core.cli.options import ConfigFile, JsonFile, OverwriteJson, Prepared, command, merged_settings, option
from dkan_core.cli.results import result_printer
from dkan_core.cli.usage_errors import Commands
from dkan_core.errors import ConfigError

PANEL = "Tuning and planning"
# Settings that only matter to whole runs: how they end and resume, and where they report.
OF_RUNS = ("refit", "patience", "max_seconds", "resume", "checkpoint_uri", "tensorboard", "tracking")


@command(
    app,
    settings="TrainConfig",
    without=OF_RUNS,
    panel=PANEL,
    examples=["dkan tune-lr prepared", "dkan tune-lr prepared --factor 0.5 --factor 1 --factor 2 --batch-size 4096"],
)
def tune_lr(
    prepared: Prepared,
    steps: Annotated[int, option("--steps", help="Maximum steps per run.", group="Training")] = 150,
    repeats: Annotated[
        int, option("--repeats", help="Runs per learning rate, with consecutive seeds from --seed.", group="Training")
    ] = 2,
    factor: Annotated[
        list[float] | None,
        option(
            "--factor",
            help="Multiple of the learning rate to try; may be repeated. Default: powers of 2 from 1/8 to 8.",
            group="Training",
        ),
    ] = None,
    overwrite: OverwriteJson = False,
    json_file: JsonFile = None,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Compare learning rates by validation AP in short runs, and recommend one."""
    from dkan_core.data.format.manifest import check_is_prepared

    options = {"factors": factor} if factor else {}
    with result_printer(json_file, overwrite=overwrite) as show:
        merged = merged_settings(dkan_core.TrainConfig, config, settings)
        check_is_prepared(prepared)
        found = dkan_core.tune_learning_rate(prepared, merged, steps=steps, repeats=repeats, **options)
        show(found.to_dict(), found)


@command(
    app,
    settings="TrainConfig",
    without=OF_RUNS,
    panel=PANEL,
    examples=[
        "dkan plan prepared --gpus 8",
        "dkan plan prepared --gpus 8 --link nvlink --rows-per-second 5e6 --device-memory 80GB",
        "dkan plan prepared --device cuda:0,cpu",
    ],
)
def plan(
    prepared: Prepared,
    gpus: Annotated[
        int | None,
        option("--gpus", help="GPUs to plan for. Default: all visible GPUs, or the CPU's cores.", group="Distribution"),
    ] = None,
    link: Annotated[
        str, option("--link", help="Assumed link between GPUs: nvlink or pcie4.", group="Distribution")
    ] = "pcie4",
    check: Annotated[bool, option("--check", help="Also train briefly and compare with the prediction.")] = False,
    device_memory: Annotated[
        str | None,
        option(
            "--device-memory",
            help="Memory that one worker may use, such as 80GB. Default: measured.",
            group="Distribution",
        ),
    ] = None,
    rows_per_second: Annotated[
        float | None,
        option(
            "--rows-per-second",
            help="Rows per second of one GPU, for planning without one. Default: measured.",
            group="Distribution",
        ),
    ] = None,
    overwrite: OverwriteJson = False,
    json_file: JsonFile = None,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Measure one device on this data, predict rows per second with several, and recommend how to train.

    With several devices, as in --device cuda:0,cpu, recommend how many rows of a step each should take.
    """
    from dkan_core.data.format.manifest import check_is_prepared
    from dkan_core.training.launcher.fork_server_start import fork_ahead

    merged = merged_settings(dkan_core.TrainConfig, config, settings)
    check_is_prepared(prepared)
    with fork_ahead(), result_printer(json_file, overwrite=overwrite) as show:
        if "," in merged.device:
            if check or not all(given is None for given in (gpus, device_memory, rows_per_second)):
                raise ConfigError(
                    f"device {merged.device}: a plan for several devices does not take gpus, check, device_memory or "
                    "rows_per_second"
                )
            slices = dkan_core.plan_slices(prepared, merged)
            show(slices.to_dict(), slices)
            return
        found = dkan_core.plan(
            prepared,
            merged,
            gpus=gpus,
            link=link,
            check=check,
            device_memory=device_memory,
            rows_per_second=rows_per_second,
        )
        show(found.to_dict(), found)


bench = typer.Typer(cls=Commands, no_args_is_help=True, help="Benchmark how workers exchange parameters.")
app.add_typer(bench, name="bench", rich_help_panel=PANEL)


@command(bench, examples=["dkan bench sync", "dkan bench sync --workers 4 --size 1MB --size 16MB --json sync.json"])
def sync(
    size: Annotated[
        list[str] | None,
        option(
            "--size",
            help="Size of the parameters, such as 1MB; may be repeated. Default: powers of 4 from 64KB to 64MB.",
            group="Model",
        ),
    ] = None,
    workers: Annotated[int, option("--workers", help="Processes.", group="Distribution")] = 2,
    repeats: Annotated[int, option("--repeats", help="Exchanges per round.")] = 10,
    rounds: Annotated[int, option("--rounds", help="Rounds, in which the methods take turns.")] = 3,
    device: Annotated[
        str, option("--device", help="auto, cpu, cuda, or one device per worker.", group="Distribution")
    ] = "auto",
    overwrite: OverwriteJson = False,
    json_file: JsonFile = None,
) -> None:
    """Measure the cost of each way to exchange parameters, by size."""
    from dkan_core.training.launcher.fork_server_start import fork_ahead

    options = {"sizes": size} if size else {}
    with fork_ahead(), result_printer(json_file, overwrite=overwrite) as show:
        found = dkan_core.bench_sync(workers=workers, repeats=repeats, rounds=rounds, device=device, **options)
        show(found.to_dict(), found)
