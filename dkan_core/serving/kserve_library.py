"""KServe's server library, imported so that it does not read our command line."""

import sys

from dkan_core.utils.extras import require


def import_kserve() -> None:
    """Import KServe's library.

    Raises:
        ConfigError: It is not installed.
    """
    require("kserve", "serve")
    # Its model server parses the command line on import, and exits on one of our options that abbreviates one of its
    # own.
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        import kserve  # noqa: F401
    finally:
        sys.argv = arguments
