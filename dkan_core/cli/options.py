"""Options of the ``dkan`` command: the fields of a config in the panels of their groups, and what commands share."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand
from typer.main import get_command

import dkan_core
from dkan_core.cli.startup import LazyCommand, import_pyarrow_without_pandas, show_whole_help
from dkan_core.errors import ConfigError

if TYPE_CHECKING:
    # Not imported at run time: pydantic takes longer than everything else that the list of commands needs.
    from dkan_core.config import ConfigT, Group

Body = Callable[..., None]
Settings = Literal["PrepareConfig", "ServeConfig", "TrainConfig"]


def option(*names: str, help: str, group: "Group | None" = None) -> Any:
    """Return typer's description of an option.

    Args:
        names: Its names, such as ``--out``.
        help: Its text; a last sentence "Default: ..." says how the default is derived.
        group: Its panel in the help.
    """
    # typer shows only defaults that are values; the way a default is derived has to be in the text.
    text, _, default = help.strip().partition("Default: ")
    shown: Any = default.removesuffix(".") or True
    return typer.Option(*names, help=text.strip(), show_default=shown, rich_help_panel=group)


Sources = Annotated[list[str], typer.Argument(metavar="SRC", help="Parquet files, folders, globs or fsspec URIs.")]
Prepared = Annotated[str, typer.Argument(metavar="DIR", help="Folder or URI that `dkan prepare` wrote.")]
Model = Annotated[str, typer.Argument(metavar="RUN/model", help="Model folder or URI that `dkan train` wrote.")]
Out = Annotated[str, option("--out", help="Folder or fsspec URI to write the results to.", group="Output")]
Overwrite = Annotated[bool, option("--overwrite", help="Replace an earlier result.", group="Output")]
OverwriteJson = Annotated[bool, option("--overwrite", help="Replace an earlier --json file.", group="Output")]
DryRun = Annotated[
    bool,
    option(
        "--dry-run",
        help="Say what would be done, and write nothing. This checks settings and schemas, but reads no rows: values "
        "of labels are not checked.",
        group="Output",
    ),
]
JsonFile = Annotated[
    str | None,
    option("--json", help="File to write the result to as JSON; - for standard output. Default: none.", group="Output"),
]
HtmlFile = Annotated[
    str | None, option("--html", help="File to write the result to as a page. Default: none.", group="Output")
]
ConfigFile = Annotated[
    str | None,
    option(
        "--config",
        help="TOML or JSON file of settings, or a JSON object itself; options on the command line override it. "
        "Default: none.",
    ),
]


def command(
    app: typer.Typer,
    *,
    examples: list[str],
    settings: Settings | None = None,
    without: Collection[str] = (),
    panel: str | None = None,
) -> Callable[[Body], Body]:
    """Add a function to an app as a command whose help groups the options and ends with examples.

    Args:
        app: The app to add it to.
        examples: Commands that a user may copy.
        settings: Name of a config, each field of which becomes an option; those that are given reach the function as
            the dict ``settings``.
        without: Fields without an option, as they have no effect on the command; a file of settings may have them.
        panel: The panel of the app's help that lists the command.
    """

    def decorate(body: Body) -> Body:
        # typer calls this like a command class.
        make = functools.partial(_whole_command, body, settings, without)
        lazy: Any = functools.partial(LazyCommand, make=make, advanced=functools.partial(_advanced, settings))
        name = body.__name__.replace("_", "-")
        of_app = {"cls": lazy, "help": inspect.getdoc(body), "epilog": epilog(examples), "rich_help_panel": panel}
        app.command(name, **of_app)(_without_options)
        return body

    return decorate


def _said(
    quiet: Annotated[bool, option("--quiet", "-q", help="Show only warnings and errors.", group="Output")] = False,
    verbose: Annotated[
        bool, option("--verbose", "-v", help="Show more detail, including messages of libraries.", group="Output")
    ] = False,
) -> None:
    """Set the verbosity, and show that the command has begun; every command has these options."""
    from dkan_core.utils.logs import set_verbosity
    from dkan_core.utils.progress import show_start

    set_verbosity(quiet=quiet, verbose=verbose)
    # A sign of life before imports and footers of files, which take seconds.
    show_start()


def _without_options() -> None:
    """Placeholder for the function of a command whose options are not known yet."""


def _advanced(settings: Settings | None) -> frozenset[str]:
    """Return the names of the advanced settings, which only ``--help-all`` shows."""
    kind = getattr(dkan_core, settings) if settings else None
    return frozenset(each.name for each in fields(kind) if each.metadata["advanced"]) if kind else frozenset()


def _help_all_option() -> inspect.Parameter:
    """Return the option that shows the help with the advanced settings."""
    about = option("--help-all", help="Show this message with the advanced options, and exit.")
    about.is_eager, about.callback = True, show_whole_help
    return inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, about]
    )


def _whole_command(body: Body, settings: Settings | None, without: Collection[str]) -> TyperCommand:
    """Return a command with every option: those of the function, and those of its settings but for some."""
    own = [parameter for parameter in inspect.signature(body).parameters.values() if parameter.name != "settings"]
    own += inspect.signature(_said).parameters.values()
    of_settings = _setting_options(getattr(dkan_core, settings), without) if settings else []
    if _advanced(settings):
        own.append(_help_all_option())

    @functools.wraps(body)
    def run(context: typer.Context, **values: Any) -> None:
        if settings:
            values["settings"] = _pop_given(context, values, [option.name for option in of_settings])
        values.pop("help_all", None)
        _said(quiet=values.pop("quiet"), verbose=values.pop("verbose"))
        import_pyarrow_without_pandas()
        body(**values)

    # typer shows the options in the order of the signature.
    ordered = [_CONTEXT, *sorted([*own, *of_settings], key=_place)]
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in ordered]
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command()(run)
    made = get_command(alone)
    assert isinstance(made, TyperCommand), made
    return made


def epilog(examples: list[str]) -> str:
    """Return the end of a help text, which shows each paragraph as a line."""
    return "\n\n".join(["Examples:", *(f"$ {example}" for example in examples)])


def check_models(*models: str | None, sources: Sequence[str] = ()) -> None:
    """Check that models exist, before the import of torch, which takes seconds.

    Args:
        models: Folders or URIs; None for one that was not given.
        sources: Data that they are for.
    """
    from dkan_core.model.model_folder import check_is_model

    for model in models:
        if model is not None:
            check_is_model(model, sources)


def merged_settings(kind: "type[ConfigT]", config: str | None, given: dict[str, Any]) -> "ConfigT":
    """Return a config from the settings of a file or text, if there is one, and the options, which override it."""
    from dkan_core.config import build_config, field_types, read_settings
    from dkan_core.config.schema import unknown_setting

    if config is None:
        return build_config(kind, given)
    settings = read_settings(config)
    origin = "--config" if config.startswith("{") else config
    if unknown := [name for name in settings if name not in field_types(kind)]:
        if isinstance(settings[min(unknown)], dict):
            raise ConfigError(f"{origin}: {min(unknown)!r} is a table; write settings outside of any table")
        raise ConfigError(f"{origin}: {unknown_setting(kind, unknown)}")
    try:
        return build_config(kind, {**settings, **given})
    except ConfigError as error:
        raise ConfigError(f"{error} (settings from {origin} and the command line)") from None


_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def _pop_given(context: typer.Context, values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Remove these options from ``values``; return those given explicitly, as a file may set the others."""
    popped = {name: values.pop(name) for name in names}
    sources = {name: context.get_parameter_source(name) for name in names}
    return {name: value for name, value in popped.items() if getattr(sources[name], "name", None) == "COMMANDLINE"}


def _setting_options(kind: type, without: Collection[str]) -> list[inspect.Parameter]:
    from dkan_core.config import field_docs, field_types

    docs, types = field_docs(kind), field_types(kind)
    used = [each for each in fields(kind) if each.name not in without]
    return [_setting_option(each, types[each.name], _naming_options(docs[each.name], types)) for each in used]


def _naming_options(doc: str, settings: Collection[str]) -> str:
    """Return a setting's text with other settings named as options.

    >>> _naming_options("Percentages, unless `split_column` is given; see `dkan`.", {"split_column"})
    'Percentages, unless --split-column is given; see `dkan`.'
    """
    return re.sub(r"`(\w+)`", lambda match: _option_name(match[1]) if match[1] in settings else match[0], doc)


def _option_name(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _setting_option(field: Field[Any], expected: Any, doc: str) -> inspect.Parameter:
    from dkan_core.config import item_type, without_none

    kind, default = without_none(expected), field.default
    if item := item_type(expected):
        kind = list[item]  # type: ignore[valid-type]
        default = default or None
        doc = doc.replace(".", "; may be repeated.", 1)
    if default is None:
        kind = kind | None
        doc = doc if "Default: " in doc else f"{doc} Default: none."
    name = _option_name(field.name)
    names = f"{name}/--no{name[1:]}" if default is True else name
    info = option(names, help=doc, group=field.metadata["group"])
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _place(parameter: inspect.Parameter) -> int:
    """Return where a parameter stands in the help: without a panel first, then panel by panel."""
    from dkan_core.config import Group

    (info,) = parameter.annotation.__metadata__
    return get_args(Group).index(info.rich_help_panel) + 1 if info.rich_help_panel else 0
