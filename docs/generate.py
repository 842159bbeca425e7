"""The generated parts of the reference pages: ``python -m docs.generate`` writes them, from the code.

What stands on a page between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is the text of that name in
``GENERATED``.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import yaml
from pydantic import BaseModel

import dkan_core
from dkan_core import errors
from dkan_core.cli import app as dkan_app
from pipelines.__main__ import app as pipelines_app
from pipelines.assets import asset_folders
from pipelines.submission.watch import RunOutcome

ROOT = Path(__file__).parents[1]

PART = re.compile(r"^<!-- generated: ([a-z-]+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


FORMATS = {
    "manifest.json of prepared data": "dkan_core.data.format.manifest:_ManifestFile",
    "config.json of a model": "dkan_core.model.architecture:ModelConfig",
    "preprocessor.json of a model": "dkan_core.data.encoding.preprocessor:Preprocessor",
    "files.json of a model": "dkan_core.model.model_folder:Hashes",
    "mlflow.json of a run": "dkan_core.tracking.mlflow.record:RunRecord",
    "A line of history.jsonl": "dkan_core.training.history:HistoryEntry",
    "_scoring.json of a batch scoring": "dkan_core.batch_scoring.plan:Scoring",
}
"""The schema of each file that is documented key by key, as MODULE:CLASS."""


def configuration(*kinds: type) -> str:
    """Return a table of the fields of each config."""
    return "\n\n".join(map(_settings, kinds))


def _settings(kind: type) -> str:
    docs = attribute_docs(kind)
    rows = [
        (
            f"`{name}`",
            type_text(parameter.annotation) + bounds_text(parameter.annotation),
            _default(parameter.default),
            docs.get(name, ""),
        )
        for name, parameter in inspect.signature(kind).parameters.items()
    ]
    return f"## {kind.__name__}\n\n{_summary(kind)}\n\n" + _table(("Setting", "Type", "Default", "Description"), rows)


def commands(app: typer.Typer, name: str) -> str:
    """Return usage, arguments and options of every command of an app."""
    return "\n\n".join(_commands(typer.main.get_command(app), name))


def _commands(command: Any, name: str) -> Iterator[str]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield _command(command, name)
    for each, below in inner.items():
        yield from _commands(below, f"{name} {each}")


def _command(command: Any, name: str) -> str:
    """Return the section of one command."""
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"### {name}", inspect.cleandoc(command.help or ""), f"```text\n{usage}\n```"]
    panels: dict[str, list[tuple[str, ...]]] = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)  # None of a hidden one
        if record:
            kind = "Argument" if parameter.param_type_name == "argument" else "Option"
            panel = getattr(parameter, "rich_help_panel", None) or kind
            panels.setdefault(panel, []).append((f"`{record[0].strip('`')}`", record[1]))
    parts += [_table((panel, "Description"), rows) for panel, rows in panels.items()]
    examples = [line.removeprefix("$ ") for line in (command.epilog or "").split("\n\n") if line.startswith("$ ")]
    return "\n\n".join([*parts, *(["```bash\n" + "\n".join(examples) + "\n```"] if examples else [])])


def components() -> str:
    """Return a table of the components and one of the pipelines, each with the way to its page."""
    tables = []
    for title, root in (("Components", "components"), ("Pipelines", "pipelines")):
        rows = []
        for folder in asset_folders():
            if folder.startswith(root):
                metadata = yaml.safe_load((ROOT / folder / "metadata.yaml").read_text(encoding="utf-8"))
                link = f"[{metadata['name']}](../../{folder}/README.md)"
                rows.append((link, metadata["stability"], _what_it_does(folder)))
        tables.append(f"## {title}\n\n" + _table(("Name", "Stability", "What it does"), rows))
    return "\n\n".join(tables)


def python_names() -> str:
    """Return a table of the public names of each kind, with what they do."""
    tables = []
    for kind, names in _public_names().items():
        rows = [(f"`{name}`", _summary(getattr(dkan_core, name))) for name in names]
        tables.append(f"## {kind}\n\n" + _table(("Name", "Description"), rows))
    return "\n\n".join(tables)


def python_api() -> str:
    """Return a directive of mkdocstrings for each public name, by kind."""
    kinds = []
    for kind, names in _public_names().items():
        directives = []
        for name in names:
            # The fields of a config are in the configuration's reference; those of an error say nothing more.
            options = "\n    options: {members: []}" if kind == "Errors" or name.endswith("Config") else ""
            directives.append(f"::: {getattr(dkan_core, name).__module__}.{name}{options}")
        kinds.append(f"## {kind}\n\n" + "\n\n".join(directives))
    return "\n\n".join(kinds)


def _public_names() -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in dkan_core.__all__:
        value = getattr(dkan_core, name)
        is_error = isinstance(value, type) and issubclass(value, Exception)
        kinds["Errors" if is_error else "Classes" if isinstance(value, type) else "Functions"].append(name)
    return kinds


def exit_codes() -> str:
    """Return a table of the errors of the ``dkan`` command and their codes."""
    found = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.DkanError)]
    rows = [
        (str(each.exit_code), f"`{each.__name__}`", _summary(each))
        for each in sorted(found, key=lambda each: each.exit_code)
        if each not in (errors.DkanError, errors.UserError)
    ]
    return _table(("Code", "Error", "Meaning"), rows)


def outcomes() -> str:
    """Return a table of the outcomes of ``python -m pipelines submit`` and their codes."""
    return _table(("Code", "Outcome"), [(str(each.value), each.name.lower()) for each in RunOutcome])


def file_formats() -> str:
    """Return a table of the keys of each JSON file that has a schema."""
    sections = []
    for title, place in FORMATS.items():
        module, _, name = place.partition(":")
        schema: type[BaseModel] = getattr(importlib.import_module(module), name)
        sections.append(f"### {title}\n\n" + _keys(schema))
    return "\n\n".join(sections)


def _keys(schema: type[BaseModel]) -> str:
    """Return the table of a schema's keys; those of what it holds follow each, also where that has several schemas."""
    found: dict[str, list[tuple[str, str]]] = {}
    for key, kind, text in _key_rows(schema, ""):
        found.setdefault(key, []).append((kind, text))
    rows = [(key, " or ".join(dict.fromkeys(kind for kind, _ in each)), each[0][1]) for key, each in found.items()]
    return _table(("Key", "Type", "Description"), rows)


def _key_rows(schema: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield key, type and description of each key, followed by those of the schemas that it holds."""
    settings = dict.fromkeys(inspect.signature(dkan_core.TrainConfig).parameters, "The setting of that name.")
    docs = {**settings, **attribute_docs(schema)}
    for name, field in schema.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        text = f"{field.description or docs.get(name, '')}{'' if field.is_required() else ' May be absent.'}"
        yield f"`{key}`", type_text(field.annotation), text.replace("None", "null").strip()
        for inner, mark in _inner_schemas(field.annotation):
            yield from _key_rows(inner, f"{key}{mark}.")


def _inner_schemas(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the schemas that a value holds, and what their key is followed by: ``[]`` in a list, ``.*`` in a table."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
    mark = {list: "[]", tuple: "[]", dict: ".*"}.get(get_origin(annotation), "")
    for part in get_args(annotation):
        for inner, below in _inner_schemas(part):
            yield inner, mark + below


GENERATED: dict[str, Callable[[], str]] = {
    "components": components,
    "configuration": partial(configuration, dkan_core.PrepareConfig, dkan_core.TrainConfig),
    "dkan-commands": partial(commands, dkan_app, "dkan"),
    "exit-codes": exit_codes,
    "file-formats": file_formats,
    "nodes-configuration": partial(configuration, dkan_core.NodesConfig),
    "serve-configuration": partial(configuration, dkan_core.ServeConfig),
    "outcomes": outcomes,
    "pipelines-commands": partial(commands, pipelines_app, "python -m pipelines"),
    "python-api": python_names,
}


def filled(markdown: str, texts: Mapping[str, Callable[[], str]] = GENERATED) -> str:
    """Return a page whose generated parts are those of ``texts``; parts without one stay."""

    def part(match: re.Match[str]) -> str:
        text = f"\n{texts[match[1]]()}\n\n" if match[1] in texts else match[2]
        return f"<!-- generated: {match[1]} -->\n{text}<!-- end -->"

    return PART.sub(part, markdown)


def write_pages() -> None:
    """Write the generated parts of every page."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")  # noqa: T201 - the result


def attribute_docs(kind: type) -> dict[str, str]:
    """Return the string under each attribute of a class and of those that it inherits from."""
    docs = attribute_docs(kind.__base__) if kind.__base__ not in (None, object, BaseModel) else {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):
        return docs
    assert isinstance(tree, ast.ClassDef)
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and documented:
            docs[statement.target.id] = inspect.cleandoc(following.value.value)  # type: ignore[attr-defined]
    return docs


def type_text(annotation: Any) -> str:
    """Return an annotation as a reader of a table expects it.

    >>> type_text(tuple[int, ...] | None), type_text(Literal["a", "b"]), type_text(tuple[str, float])
    ('list of int', '`a`, `b`', 'list of str and float')
    """
    origin, arguments = get_origin(annotation), [part for part in get_args(annotation) if part is not Ellipsis]
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_text(part) for part in arguments if part is not type(None)))
    if origin in (list, tuple):
        return f"list of {' and '.join(dict.fromkeys(map(type_text, arguments)))}"
    if origin is dict:
        return f"table of {type_text(arguments[1])}"
    if origin is not None:  # Annotated
        return type_text(arguments[0])
    if isinstance(annotation, type):
        return "object" if issubclass(annotation, BaseModel) else annotation.__name__
    return str(annotation).replace("typing.", "")


def bounds_text(annotation: Any) -> str:
    """Return the bounds in an annotation, as ``Annotated`` and ``Field`` hold them.

    >>> from pydantic import Field
    >>> bounds_text(Annotated[int | None, Field(ge=1, le=1024)]), bounds_text(int)
    (', 1 to 1,024', '')
    """
    if get_origin(annotation) is not Annotated:
        return next(filter(None, map(bounds_text, get_args(annotation))), "")
    bounds = [bound for each in get_args(annotation)[1:] for bound in getattr(each, "metadata", [each])]
    found = {
        name: getattr(bound, name) for bound in bounds for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)
    }
    low, high = (next((found[name] for name in names if name in found), None) for names in (("ge", "gt"), ("le", "lt")))
    if low is None and high is None:
        return bounds_text(get_args(annotation)[0])
    if high is None:
        return f", {'above' if 'gt' in found else 'at least'} {_number(low)}"
    if low is None:
        return f", {'below' if 'lt' in found else 'at most'} {_number(high)}"
    return f", {_number(low)} to {_number(high)}"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value in ((), ""):
        return "–"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _summary(kind: type) -> str:
    return _first_paragraph(inspect.cleandoc(kind.__doc__ or ""))


def _first_paragraph(text: str) -> str:
    paragraph = text.split("\n\n")[0].replace("\n", " ").replace("``", "`")
    return paragraph[:1].upper() + paragraph[1:]


def _what_it_does(folder: str) -> str:
    """Return the first paragraph of a component's docstring, or what a pipeline's module says behind its name."""
    (source,) = [path for path in (ROOT / folder).glob("*.py") if path.name in ("component.py", "pipeline.py")]
    module = ast.parse(source.read_text(encoding="utf-8"))
    functions = [each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == source.parent.name]
    text = ast.get_docstring(functions[0] if functions else module) or ""
    return _first_paragraph(text if functions else text.partition(": ")[2])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Return text as a cell holds it: no bar, which ends a cell; in code, mkdocs would show the backslash before it."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.replace("``", "`").split()))
    return "".join(part.replace("|", ", " if part.startswith("`") else "\\|") for part in parts)


if __name__ == "__main__":
    write_pages()
