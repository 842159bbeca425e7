"""The commands of the main workflow: ``dkan prepare``, ``train``, ``evaluate``, ``explain``, ``predict``, and so on."""

import shlex
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

import dkan_core
from dkan_core.cli.options import (
    ConfigFile,
    DryRun,
    JsonFile,
    Model,
    Out,
    Overwrite,
    Prepared,
    Sources,
    check_models,
    command,
    epilog,
    merged_settings,
    option,
)
from dkan_core.cli.results import fail, result_printer
from dkan_core.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train FastKAN on tabular data that is larger than memory.",
    epilog=epilog(
        [
            "dkan prepare flights --out prepared --label label --split-column split --group date",
            "dkan train prepared --out run",
            "dkan evaluate run/model prepared --split test --out eval",
            "dkan predict run/model flights --out scores.parquet --column carrier",
        ]
    ),
)

PANEL = "From data to predictions"


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
    from dkan_core.cli.dry_run import describe_preparation
    from dkan_core.cli.label_candidates import settings_with_label

    with result_printer(json_file, out=append or out, overwrite=overwrite) as show:
        if append is not None:
            others = {"--overwrite": overwrite, "--workers": workers, "--config": config, "--dry-run": dry_run}
            _append(sources, append, out, [name for name, value in others.items() if value], settings)
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


def _append(sources: list[str], prepared: str, out: str | None, others: list[str], settings: dict[str, Any]) -> None:
    if out is not None:
        raise ConfigError("give --out or --append, not both")
    if others:
        raise ConfigError(f"--append takes no {others[0]}: appended rows are prepared in one pass")
    fixed = [name for name in settings if name not in ("like", "drop")]
    if fixed:
        raise ConfigError(f"{fixed[0]}: --append uses the setting of {prepared}; leave it out")
    dkan_core.append_rows(sources, prepared, **settings)


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
    merged = merged_settings(dkan_core.TrainConfig, config, settings)
    # The import of torch takes a second.
    check_is_prepared(prepared)
    if launch is not None or nproc is not None:
        given = {"--launch": launch, "--json": json_file}
        launched = torchrun_command(prepared, out, merged, nproc, overwrite=overwrite, given=given)
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


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan evaluate run/model prepared --split test --out eval",
        "dkan evaluate run/model rows.parquet --label late --out eval --save-predictions",
        "dkan evaluate run-new/model prepared --out eval --previous run/model",
    ],
)
def evaluate(
    model: Model,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="A prepared folder, or raw Parquet.")],
    out: Out,
    split: Annotated[
        str | None,
        option("--split", help="Split of prepared data: train, valid or test. Default: test.", group="Data"),
    ] = None,
    label: Annotated[
        list[str] | None,
        option(
            "--label",
            help="Label column of raw Parquet; may be repeated. Default: the names of the model's labels.",
            group="Data",
        ),
    ] = None,
    previous: Annotated[
        str | None,
        option("--previous", help="Earlier model to evaluate on the same rows. Default: none.", group="Model"),
    ] = None,
    slice: Annotated[
        list[str] | None,
        option(
            "--slice",
            help="Column to report metrics by; may be repeated. Default: the most important columns.",
            group="Output",
        ),
    ] = None,
    save_predictions: Annotated[
        bool, option("--save-predictions", help="Write predictions.parquet.", group="Output")
    ] = False,
    no_explain: Annotated[
        bool, option("--no-explain", help="Leave out the explanation of what the model learned.", group="Output")
    ] = False,
    worst_errors: Annotated[
        int,
        option(
            "--worst-errors",
            help="Rows to show in the report, with their values and the reasons for their score; 0 for none.",
            group="Output",
        ),
    ] = 10,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Write metrics.json and report.html for a prepared split, or for raw Parquet with labels."""
    check_models(model, previous, sources=data)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        found = dkan_core.evaluate(
            model,
            data,
            out,
            split=split,
            label=label or (),
            save_predictions=save_predictions,
            explain=not no_explain,
            previous=previous,
            slices=slice or (),
            worst_errors=worst_errors,
            overwrite=overwrite,
        )
        show(found.metrics)


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan explain run/model prepared --out learned",
        "dkan explain run/model --rows new.parquet --out why",
    ],
)
def explain(
    model: Model,
    out: Out,
    prepared: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="Folder or URI that `dkan prepare` wrote; not with Parquet in --rows."),
    ] = None,
    split: Annotated[str, option("--split", help="Split to read: train, valid or test.", group="Data")] = "valid",
    top: Annotated[
        int, option("--top", help="Columns to shuffle and draw curves for, or to draw per row.", group="Output")
    ] = 12,
    rows: Annotated[
        str,
        option(
            "--rows",
            help="How many rows of the split to read; or raw Parquet, to show for each of its rows which columns moved "
            "the score.",
            group="Data",
        ),
    ] = "20000",
    label: Annotated[
        str | None,
        option("--label", help="Label to explain. Default: all; for raw rows, the most frequent.", group="Data"),
    ] = None,
    seed: Annotated[int, option("--seed", help="Seed of the shuffles.", group="Data")] = 0,
    against: Annotated[
        str | None,
        option(
            "--against", help="Earlier model to compare with: curves, importances, rows. Default: none.", group="Model"
        ),
    ] = None,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Write what the model learned, as a page and as figures; or, with raw rows, the reasons for each score."""
    check_models(model, against, sources=[prepared or rows])
    count = int(rows) if rows.removeprefix("-").isdecimal() else None
    shared: dict[str, Any] = {"label": label, "top": top, "overwrite": overwrite}
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        if count is None:
            if prepared is not None:
                raise ConfigError(
                    f"rows: {rows} is explained without prepared data; leave out {prepared}, or give a number of its "
                    "rows"
                )
            if against is not None:
                raise ConfigError("against: compares models on prepared data; leave it out with raw Parquet in --rows")
            if split != "valid":
                raise ConfigError(f"split: raw Parquet has none; leave out {split}, or give a number of rows in --rows")
            show({"rows": [asdict(row) for row in dkan_core.explain_rows(model, rows, out, **shared)]})
        elif prepared is None:
            raise ConfigError("DIR is missing: give what `dkan prepare` wrote, or raw Parquet with --rows")
        else:
            found = dkan_core.explain(
                model, prepared, out, split=split, rows=count, seed=seed, against=against, **shared
            )
            show(found.to_dict())


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan predict run/model flights --out scores.parquet",
        "dkan predict run/model new.parquet --out scores.parquet --column id --column carrier",
    ],
)
def predict(
    model: Model,
    sources: Sources,
    out: Annotated[str, option("--out", help="File to write: .parquet, or .csv.", group="Output")],
    column: Annotated[
        list[str] | None,
        option("--column", help="Source column to copy to the output; may be repeated. Default: none.", group="Output"),
    ] = None,
    reasons: Annotated[
        int,
        option(
            "--reasons",
            help="Number of columns to report per row, the strongest first, with value and log-odds; 0: none.",
            group="Output",
        ),
    ] = 0,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Score raw Parquet: one probability per label and row, in the order of the input."""
    check_models(model, sources=sources)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        rows = dkan_core.predict(model, sources, out, columns=column or (), reasons=reasons, overwrite=overwrite)
        show({"scores": out, "rows": rows})


@command(app, panel=PANEL, examples=["dkan export run/model --out late.onnx"])
def export(
    model: Model,
    out: Annotated[str, option("--out", help="File or fsspec URI to write.", group="Output")],
    missing_text: Annotated[
        str,
        option(
            "--missing-text",
            help="Text that stands for a missing category, as ONNX has no nulls. Default: the empty string.",
            group="Output",
        ),
    ] = "",
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Write a model as one file that runs without dkan: raw columns in, probabilities out."""
    check_models(model)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        show(asdict(dkan_core.export(model, out, missing_text=missing_text, overwrite=overwrite)))


@command(
    app,
    settings="ServeConfig",
    panel=PANEL,
    examples=[
        "dkan serve run/model --name late",
        "dkan serve s3://bucket/models/late --name late --port 9000 --grpc-port 9001 --workers 4",
    ],
)
def serve(model: Model, config: ConfigFile = None, *, settings: dict[str, Any]) -> None:
    """Serve a model over HTTP: the Open Inference Protocol, and rows as plain JSON."""
    check_models(model)
    dkan_core.serve(model, merged_settings(dkan_core.ServeConfig, config, settings))
