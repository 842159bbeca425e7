"""Packages that only an extra of dkan installs."""

import importlib.util

from dkan_core.errors import ConfigError


def not_installed(package: str, extra: str) -> str:
    """Return what to do where a package is missing.

    >>> not_installed("mlflow", "mlflow")
    "mlflow is not installed; in a checkout of dkan run: pip install '.[mlflow]'"
    """
    return f"{package} is not installed; in a checkout of dkan run: pip install '.[{extra}]'"


def require(package: str, extra: str) -> None:
    """Raise ConfigError where a package is not installed; it is not imported.

    Args:
        package: Name to import; the packages around it must be installed.
        extra: The extra of dkan that it comes with.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(not_installed(package, extra))
