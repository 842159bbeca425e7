"""Packages that only an extra of dkan installs."""

import importlib.util
import platform
import sys

from dkan_core.errors import ConfigError

BELOW = {"serve": (3, 14)}
"""Extra -> the first version of Python that its packages cannot be installed with."""


def not_installed(package: str, extra: str) -> str:
    """Return a message that says how to install a missing package.

    >>> not_installed("mlflow", "mlflow")
    "mlflow is not installed; in a checkout of dkan run: pip install '.[mlflow]'"
    """
    limit = BELOW.get(extra)
    if limit is not None and sys.version_info >= limit:
        needed, found = ".".join(map(str, limit)), platform.python_version()
        return (
            f"{package} is not installed: it needs Python below {needed}, and this is Python {found}; "
            f"in a checkout of dkan run with an earlier Python: pip install '.[{extra}]'"
        )
    return f"{package} is not installed; in a checkout of dkan run: pip install '.[{extra}]'"


def require(package: str, extra: str) -> None:
    """Raise ConfigError where a package is not installed; it is not imported.

    Args:
        package: Name to import; the packages around it must be installed.
        extra: The extra of dkan that it comes with.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(not_installed(package, extra))
