"""Writes settings from their schema into the signature and the docstring of a component.

kfp reads a component's form from a literal signature, and runs its source text alone, so both must be written out. A
component has the settings of a config between two comments. All other parameters and their descriptions are its own,
except for settings that must stand elsewhere, such as those without a default.
"""

import ast
import re
import textwrap

import dkan_core.config
from dkan_core.forms.settings import FormField, form_fields
from pipelines.assets import ROOT

SETTINGS = re.compile(
    r"^    # Settings of (?P<kind>\w+), by: python -m pipelines signatures\n(?P<lines>.*?)^    # End of settings\.\n",
    re.MULTILINE | re.DOTALL,
)
ARGS = re.compile(r"^    Args:\n(?P<lines>(?:        .*\n)+)", re.MULTILINE)
ARGUMENT = re.compile(r"^        (?P<name>\w+): (?P<text>.*\n(?:            .*\n)*)", re.MULTILINE)

# Line length, as in pyproject.toml for ruff.
WIDTH = 120


class SignatureError(ValueError):
    """A parameter of a component has no description; the message names it."""


def write_signatures(*, check: bool) -> list[str]:
    """Update every component with settings, or with ``check`` change none; return the outdated ones."""
    outdated = []
    for path in sorted(ROOT.glob("components/*/*/component.py")):
        before = path.read_text(encoding="utf-8")
        after = updated(before)
        if after != before:
            outdated.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(after, encoding="utf-8")
    return outdated


def updated(source: str) -> str:
    """Return the source of a component with its settings as the schema has them.

    Raises:
        SignatureError: A parameter that is no setting has no description.
    """
    fields = {
        field.name: field
        for block in SETTINGS.finditer(source)
        for field in form_fields(getattr(dkan_core.config, block["kind"]))
    }
    if not fields:
        return source
    # Parameters outside keep their place: kfp needs those without a default first, and artifacts have their own order.
    own = _parameters(SETTINGS.sub("", source))
    source = SETTINGS.sub(lambda block: _block(block, own), source)
    parameters = _parameters(source)
    return ARGS.sub(lambda section: _described(section, parameters, fields), source, count=1)


def _parameters(source: str) -> list[str]:
    """Return the names of a component's parameters in order."""
    (function,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return [argument.arg for argument in function.args.args]


def _block(block: re.Match[str], own: list[str]) -> str:
    """Return the block of a config's settings, without those that stand elsewhere in the signature."""
    fields = form_fields(getattr(dkan_core.config, block["kind"]))
    lines = [_parameter(field) for field in fields if field.name not in own]
    start, end = block[0].splitlines()[0], block[0].splitlines()[-1]
    return "\n".join([start, *lines, end, ""])


def _parameter(field: FormField) -> str:
    default = f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
    mutable = "  # noqa: B006 - kfp asks for a value, and never changes it" if default in ("{}", "[]") else ""
    return f"    {field.name}: {field.type.__name__} = {default},{mutable}"


def _described(section: re.Match[str], parameters: list[str], fields: dict[str, FormField]) -> str:
    """Return the section Args of a docstring: settings get the schema's text, other parameters keep theirs."""
    own = {argument["name"]: " ".join(argument["text"].split()) for argument in ARGUMENT.finditer(section["lines"])}
    lines = []
    for name in parameters:
        text = fields[name].text if name in fields else own.get(name)
        if not text:
            raise SignatureError(f"{name}: describe it in Args of the docstring; it is no setting of a config")
        lines += textwrap.wrap(
            f"{name}: {text}",
            WIDTH,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "    Args:\n" + "\n".join(lines) + "\n"
