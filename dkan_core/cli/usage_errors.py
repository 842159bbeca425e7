"""Errors of the command line: the value that was given, and what was probably meant."""

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dkan_core.cli.flags import PlainFlags

# typer has no public name for the class of all its errors about a command line.
UsageError: Any = typer.BadParameter.__base__

# Expected values by pydantic's error type, for messages: typer shows pydantic's text without the value.
EXPECTED = {"int_parsing": "an integer", "int_from_float": "an integer", "float_parsing": "a number"}

# Names that other programs have for options and commands; hints show ours.
MEANT = {"--lr": ["--learning-rate"], "--gpus": ["--device", "--workers"], "--target": ["--label"]}
MEANT_COMMANDS = {"fit": "train"}


class Commands(PlainFlags, TyperGroup):
    """Commands whose errors know some names of other programs."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with a name, if there is one."""
        meant = MEANT_COMMANDS.get(cmd_name)
        if meant in self.commands and not ctx.resilient_parsing:  # which completion does; errors would end it
            ctx.fail(f"No such command {cmd_name!r}. Did you mean {meant!r}?")
        return super().get_command(ctx, cmd_name)


class Command(PlainFlags, TyperCommand):
    """A command whose errors say what was given and probably meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        given = [*args]  # parsing empties the list
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            explain_usage_error(error, given, self.params)
            raise


def explain_usage_error(error: Any, given: Sequence[str], known: Sequence[Any]) -> None:
    """Extend the message of an error.

    Args:
        error: One of typer's ``UsageError``.
        given: The words of the command line.
        known: Options and arguments of the command.
    """
    names = {name for parameter in known for name in parameter.opts}
    if meant := [name for name in MEANT.get(getattr(error, "option_name", ""), []) if name in names]:
        error.possibilities = meant
    faults: list[Any] = getattr(error.__cause__, "errors", list)()
    if faults and faults[0]["type"] in EXPECTED:
        value = faults[0]["input"]
        error.message = f"must be {EXPECTED[faults[0]['type']]}, got {value!r}"
        if "," in str(value) and error.param.multiple:
            name = error.param.opts[0]
            repeated = " ".join(f"{name} {each.strip()}" for each in str(value).split(",") if each.strip())
            error.message += f"; repeat the option for several values: {repeated}"
    error.message = error.message.removeprefix("Value error, ")
    missing = getattr(getattr(error, "param", None), "opts", [""])[0]
    before = given[given.index(missing) - 1] if missing in given else ""
    if before in names and not error.message:
        example = " such as auto" * (before == "--resume")
        error.message = f"{before} needs a value{example}, and took this option as one."
