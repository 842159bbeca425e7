"""``python -m dkan_core``: the same as the ``dkan`` command."""

import sys


def run() -> None:
    """Run the command as all that this process does."""
    try:
        from dkan_core.cli import main
        from dkan_core.cli.startup import run_process
    except KeyboardInterrupt:
        sys.exit(130)
    run_process(main)


if __name__ == "__main__":
    run()
