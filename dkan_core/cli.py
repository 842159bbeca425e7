"""The ``dkan`` command. Options of those that train or prepare include the fields of their configs."""

import functools
import inspect
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import typer

import dkan_core
from dkan_core.config import PrepareConfig, TrainConfig, build_config, field_docs, read_settings
from dkan_core.errors import ConfigError, DkanError, redact
from dkan_core.utils.progress import console, on_terminal
from dkan_core.utils.storage.staging import staged_file

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train FastKAN on huge tabular data: prepare, train, evaluate, explain, predict.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure what a run is made of.")
app.add_typer(bench, name="bench")

Sources = Annotated[list[str], typer.Argument(metavar="SRC...", help="Parquet files, folders, globs or fsspec URIs.")]
Out = Annotated[str, typer.Option("--out", help="Folder or fsspec URI for the results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in --out.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML or JSON file of settings; options go before.")]
Prepared = Annotated[str, typer.Argument(metavar="DIR", help="Folder or URI that `dkan prepare` wrote.")]
Split = Annotated[str, typer.Option(help="train, valid or test.")]
JsonFile = Annotated[str | None, typer.Option("--json", help="File to write the result to.")]
Model = Annotated[str, typer.Argument(metavar="RUN/model", help="Model that `dkan train` wrote.")]


def _with_settings(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a config; those set reach it as the dict ``settings``."""
    docs, hints = field_docs(kind), get_type_hints(kind)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
        options = [_option(field.name, hints[field.name], docs[field.name], field.default) for field in fields(kind)]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            settings = {option.name: values.pop(option.name) for option in options}
            command(**values, settings={name: value for name, value in settings.items() if value not in (None, [])})

        run.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        return run

    return decorate


def _option(name: str, hint: Any, doc: str, default: Any) -> inspect.Parameter:
    """Return a keyword parameter that typer shows as an option; not given is None, so that a file can set it."""
    plain = [part for part in get_args(hint) if part is not type(None)] if type(None) in get_args(hint) else [hint]
    kind: Any = plain[0]
    if str(kind).startswith("tuple"):
        kind = list[get_args(kind)[0]]  # type: ignore[misc]
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    help_text = doc if default in (None, ()) or default is False else f"{doc} Default: {shown}."
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _merged(kind: Any, config: Path | None, settings: dict[str, Any]) -> Any:
    """Return a config from the settings of a file, if there is one, and the options, which go before."""
    if config is None:
        return build_config(kind, settings)
    try:
        return build_config(kind, {**read_settings(config), **settings})
    except ConfigError as error:
        raise ConfigError(f"{error} (settings of {config} and of the command line)") from None


@app.command()
@_with_settings(PrepareConfig)
def prepare(
    sources: Sources, out: Out, overwrite: Overwrite = False, config: ConfigFile = None, *, settings: dict[str, Any]
) -> None:
    """Turn Parquet into shuffled, encoded shards and a manifest."""
    dkan_core.prepare(sources, out, _merged(PrepareConfig, config, settings), overwrite=overwrite)


@app.command()
@_with_settings(TrainConfig)
def train(
    prepared: Prepared,
    out: Out,
    overwrite: Overwrite = False,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Train, evaluate in parallel, and keep the best model by validation average precision."""
    merged = _merged(TrainConfig, config, settings)
    try:
        result = dkan_core.train(prepared, out, merged, overwrite=overwrite)
    except KeyboardInterrupt:
        _fail(f"interrupted; the best model so far, if there is one, is whole in {out}/model", 130)
    if result.metrics["training"]["ended"] == "interrupt":
        way_on = "continue with --resume auto" if result.checkpoint else "no checkpoint; start over with --overwrite"
        _fail(f"interrupted; the best model so far is in {out}/model; {way_on}", 130)


@app.command()
@_with_settings(TrainConfig)
def tune_lr(
    prepared: Prepared,
    steps: Annotated[int, typer.Option(help="Largest number of steps of a run.")] = 150,
    repeats: Annotated[int, typer.Option(help="Runs of each rate, with seeds from --seed on.")] = 2,
    factor: Annotated[
        list[float] | None,
        typer.Option(help="Multiple of the rate to try; may be repeated. Default: 1/8 to 8, each twice the last."),
    ] = None,
    json_file: JsonFile = None,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Train shortly with several learning rates, print their validation AP, and recommend one."""
    options = {"factors": factor} if factor else {}
    with _shown(json_file) as show:
        merged = _merged(TrainConfig, config, settings)
        show(dkan_core.tune_learning_rate(prepared, merged, steps=steps, repeats=repeats, **options))


@app.command()
@_with_settings(TrainConfig)
def plan(
    prepared: Prepared,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs to plan for. Default: those visible, or the cores where there is none.")
    ] = None,
    link: Annotated[str, typer.Option(help="How GPUs are linked: nvlink or pcie4; not measured.")] = "pcie4",
    check: Annotated[bool, typer.Option("--check", help="Train shortly, too, and compare.")] = False,
    device_memory: Annotated[
        str | None, typer.Option(help="Memory that one worker may use, such as 80GB. Default: measured.")
    ] = None,
    rows_per_second: Annotated[
        float | None,
        typer.Option(help="Rows per second of one GPU, published or measured: plans for GPUs where none is visible."),
    ] = None,
    json_file: JsonFile = None,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Measure one device on this data, predict rows per second with several, and recommend a way to train.

    With several devices named, as in --device cuda:0,cpu, say how many rows of a step to give to each.
    """
    merged = _merged(TrainConfig, config, settings)
    with _shown(json_file) as show:
        if "," in merged.device:
            if check or not all(given is None for given in (gpus, device_memory, rows_per_second)):
                raise ConfigError(
                    f"device {merged.device}: leave out what a plan for one device has: gpus, check, "
                    "device_memory, rows_per_second"
                )
            show(dkan_core.plan_slices(prepared, merged))
            return
        show(
            dkan_core.plan(
                prepared,
                merged,
                gpus=gpus,
                link=link,
                check=check,
                device_memory=device_memory,
                rows_per_second=rows_per_second,
            )
        )


@bench.command()
def sync(
    size: Annotated[
        list[str] | None,
        typer.Option(help="Bytes of the parameters; may be repeated. Default: 64KB to 64MB, each 4 times the last."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    repeats: Annotated[int, typer.Option(help="Exchanges in a round.")] = 10,
    rounds: Annotated[int, typer.Option(help="How often each is measured, in turns.")] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or one device per worker.")] = "auto",
    json_file: JsonFile = None,
) -> None:
    """Measure what each way to exchange parameters costs, by their size."""
    options = {"sizes": size} if size else {}
    with _shown(json_file) as show:
        show(dkan_core.bench_sync(workers=workers, repeats=repeats, rounds=rounds, device=device, **options))


@contextmanager
def _shown(json_file: str | None) -> Iterator[Callable[[Any], None]]:
    """Yield a function that prints a result and, where a file is named, writes it there."""
    with staged_file(json_file) if json_file else nullcontext() as aside:

        def show(result: Any) -> None:
            typer.echo(result)
            if aside:
                aside.write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")

        yield show


@app.command()
def evaluate(
    model: Model,
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="A prepared folder, or raw Parquet as SRC.")],
    out: Out,
    split: Annotated[str | None, typer.Option(help="Of prepared data: train, valid or test. Default: test.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Column of raw Parquet that holds a label; may be repeated. Default: called as the model's."),
    ] = None,
    save_predictions: Annotated[bool, typer.Option("--save-predictions", help="Write predictions.parquet.")] = False,
    no_explain: Annotated[bool, typer.Option("--no-explain", help="Leave out what the model learned.")] = False,
    previous: Annotated[str | None, typer.Option(help="Earlier model to score on the same rows.")] = None,
) -> None:
    """Write metrics.json and report.html for a prepared split, or for raw Parquet with labels."""
    dkan_core.evaluate(
        model,
        data,
        out,
        split=split,
        label=label or (),
        save_predictions=save_predictions,
        explain=not no_explain,
        previous=previous,
    )


@app.command()
def explain(
    model: Model,
    prepared: Prepared,
    out: Out,
    split: Split = "valid",
    top: Annotated[int, typer.Option(help="Columns that are shuffled and whose curve is drawn.")] = 12,
    rows: Annotated[int, typer.Option(help="Rows of the split to read.")] = 20_000,
    label: Annotated[str | None, typer.Option(help="Label to explain; by default the most frequent one.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the shuffles.")] = 0,
) -> None:
    """Write what the model learned: importances, curves and interactions, as a page and as figures."""
    dkan_core.explain(model, prepared, out, split=split, top=top, rows=rows, label=label, seed=seed)


@app.command()
def predict(
    model: Model,
    sources: Sources,
    out: Annotated[str, typer.Option("--out", help="Parquet file to write.")],
    column: Annotated[list[str] | None, typer.Option(help="Source column to pass through; may be repeated.")] = None,
) -> None:
    """Score raw Parquet: a probability per label, input order kept."""
    dkan_core.predict(model, sources, out, columns=column or ())


@app.command()
def drift(
    model: Model,
    sources: Sources,
    max_psi: Annotated[float, typer.Option(help="Exit with code 1 where a PSI is above it; 0 sets no limit.")] = 0.0,
    json_file: JsonFile = None,
) -> None:
    """Tell how far raw Parquet, and its scores, are from what the model was trained with."""
    with _shown(json_file) as show:
        found = dkan_core.measure_drift(model, sources)
        show(found)
    found.check(max_psi)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dkan {dkan_core.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Set up what all commands share."""
    _set_up_logging()


def _set_up_logging() -> None:
    """Show what dkan says, and only warnings of the libraries under it."""
    if on_terminal():
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(console=console, show_path=False, show_level=False, show_time=False)
        logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
    else:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    for shown in logging.getLogger().handlers:
        shown.addFilter(_hide_credentials)
    logging.getLogger("dkan_core").setLevel(logging.INFO)


def _hide_credentials(record: logging.LogRecord) -> bool:
    record.msg, record.args = redact(record.getMessage()), ()
    return True


def main() -> None:
    """Run the command; an error of ours is one message and its exit code."""
    # So that a stopped pod unwinds: children are ended, staged files removed, the logs of a remote run uploaded.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app()
    except DkanError as error:
        _fail(error, error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


def _fail(message: object, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(f"error: {message}\n")
    sys.exit(code)
