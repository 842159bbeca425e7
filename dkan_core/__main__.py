"""``python -m dkan_core``: the same as the ``dkan`` command."""

from dkan_core.cli import main
from dkan_core.cli.startup import run_process


def run() -> None:
    """Run the command as all that this process does."""
    run_process(main)


if __name__ == "__main__":
    run()
