"""``python -m dkan_core``: the same as the ``dkan`` command."""

from dkan_core.cli import main

if __name__ == "__main__":
    main()
