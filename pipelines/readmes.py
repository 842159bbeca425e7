"""The tables of inputs and outputs in the README of every component and pipeline, written from the code."""

import inspect
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import docstring_parser
from kfp.dsl.base_component import BaseComponent

from pipelines.assets import ROOT, asset_folders, load_asset

# Python's names of the parameter types.
TYPES = {
    "String": "str",
    "Integer": "int",
    "Float": "float",
    "Boolean": "bool",
    "List": "list",
    "Dict": "dict",
}


# Replaces a table without rows.
NONE = "None"


class TableError(ValueError):
    """A README or a docstring lacks something that a table needs; the message says what."""


def inputs_table(asset: BaseComponent) -> str:
    """Render the table of inputs, in the order of the signature."""
    descriptions = _descriptions(asset, asset.component_spec.inputs)
    rows = []
    for name, field in (asset.component_spec.inputs or {}).items():
        default = _default(field.default) if field.optional else "required"
        rows.append(f"| `{name}` | `{_type(field)}` | {default} | {_cell(descriptions, name)} |")
    return _table("| Name | Type | Default | Description |", rows)


def outputs_table(asset: BaseComponent) -> str:
    """Render the table of outputs: the Output artifacts, then the returned values."""
    descriptions = _descriptions(asset, asset.component_spec.outputs)
    rows = [
        f"| `{name}` | `{_type(field)}` | {_cell(descriptions, name)} |"
        for name, field in (asset.component_spec.outputs or {}).items()
    ]
    return _table("| Name | Type | Description |", rows)


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows]) if rows else NONE


def updated(folder: str) -> str:
    """Return the README of an asset with its tables as the code has them.

    Raises:
        TableError: The README has no place for a table, or something has no description.
    """
    path = ROOT / folder / "README.md"
    asset, text = load_asset(folder), path.read_text(encoding="utf-8")
    for title, table in (("Inputs", inputs_table(asset)), ("Outputs", outputs_table(asset))):
        pattern = rf"(^## {title}\n\n)(?:\|.*\n|{NONE}\n)*"
        text, found = re.subn(pattern, partial(_with_table, table), text, flags=re.MULTILINE)
        if found != 1:
            raise TableError(f"{folder}/README.md: expected one section '## {title}', found {found}")
    return text


def _with_table(table: str, heading: re.Match[str]) -> str:
    return f"{heading[1]}{table}\n"


def write_tables(*, check: bool) -> list[str]:
    """Update the README of every asset, or with ``check`` change none; return the outdated ones."""
    outdated = []
    for folder in asset_folders():
        path, text = ROOT / folder / "README.md", updated(folder)
        if path.read_text(encoding="utf-8") != text:
            outdated.append(f"{folder}/README.md")
            if not check:
                path.write_text(text, encoding="utf-8")
    return outdated


def _descriptions(asset: BaseComponent, fields: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the descriptions of inputs or of outputs in the code, which may have the same names."""
    function = getattr(asset, "pipeline_func", None) or getattr(asset, "python_func", None)
    docs = docstring_parser.parse(inspect.getdoc(function) or "")
    found = {param.arg_name: param.description for param in docs.params}
    if docs.returns and docs.returns.description:
        found["Output"] = docs.returns.description
    found |= {name: field.description for name, field in (fields or {}).items() if field.description}
    return {name: " ".join((text or "").split()) for name, text in found.items()}


def _cell(descriptions: dict[str, str], name: str) -> str:
    if not descriptions.get(name):
        raise TableError(f"{name} has no description in the docstring")
    return descriptions[name].replace("|", "\\|")


def _type(field: Any) -> str:
    """Return the type of an input or output as its signature has it."""
    if "@" in field.type:
        name = f"dsl.{field.type.partition('@')[0].rpartition('.')[2]}"
        return f"list[{name}]" if field.is_artifact_list else name
    return re.sub(r"\w+", lambda word: TYPES.get(word[0], word[0]), field.type)


def _default(value: Any) -> str:
    # Not in code quotes, in which neither would be visible.
    if value is None or value == "":
        return "none" if value is None else "empty"
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return f"`{text}`".replace("|", "\\|")
