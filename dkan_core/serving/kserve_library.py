"""KServe's server library, imported so that it does not read our command line."""

import importlib.util
import sys

from dkan_core.errors import ConfigError


def import_kserve() -> None:
    """Import KServe's library.

    Raises:
        ConfigError: It is not installed.
    """
    if importlib.util.find_spec("kserve") is None:
        raise ConfigError("kserve is not installed; in a checkout of dkan run: pip install '.[serve]'")
    # Its model server parses the options of the process when it is imported, and ends the process on one of ours that
    # abbreviates one of its own.
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        import kserve  # noqa: F401
    finally:
        sys.argv = arguments
