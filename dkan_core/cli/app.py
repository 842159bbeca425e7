"""The ``dkan`` command itself; its subcommands are in modules of their names, those for planning in one."""

import typer

from dkan_core.cli.options import epilog
from dkan_core.cli.usage_errors import Commands

app = typer.Typer(
    cls=Commands,
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
"""Panel of the help with most commands."""
