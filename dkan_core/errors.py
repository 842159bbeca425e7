"""Errors a caller can catch.

DkanError
├── UserError                the input or a setting is wrong: exit code 2, nothing left half-written
│   ├── ConfigError          a setting is unknown or out of range
│   ├── DataError            a source file, column or row is not what was expected
│   │   └── UnreadableError  a file cannot be reached: it may be readable the next time
│   └── OutputError          the output folder cannot take the result
├── ClusterUnreachableError  a Kubernetes cluster does not answer: exit code 1
├── DeploymentError          a model is not served, though all settings are right: exit code 1
├── GateError                a result is not good enough: exit code 1
└── TrainingError            a process of a training run died: exit code 1

ConfigError and DataError are ValueErrors too, as scikit-learn's callers expect.
"""

import re

_CREDENTIALS = re.compile(r"(?<=://)[^\s@/:]*:[^\s@]*(?=@)|(?<=\?)[^\s?=]+=\S*?(?=[)\s:,;'\"]|$)")
"""User and secret before the host of a URI, and a query, such as a signature."""


def redact(text: str) -> str:
    """Return text without the credentials of URIs in it, wherever they are repeated.

    >>> redact("s3://key:se/cret@bucket/a: gone"), redact("https://host/a?X-Signature=ab12&b=1: gone")
    ('s3://***@bucket/a: gone', 'https://host/a?***: gone')
    >>> redact("s3://bucket/part-?.parquet")
    's3://bucket/part-?.parquet'
    >>> redact("s3://key:secret@bucket/a: cannot be read (no bucket key:secret@bucket)")
    's3://***@bucket/a: cannot be read (no bucket ***@bucket)'
    """
    found = {credentials for credentials in _CREDENTIALS.findall(text) if credentials != ":"}
    for credentials in sorted(found, key=len, reverse=True):
        text = text.replace(credentials, "***")
    return text


class DkanError(Exception):
    """Base of every error that dkan raises on purpose; its message shows no credentials."""

    exit_code = 1

    def __init__(self, *details: object) -> None:
        super().__init__(*(redact(detail) if isinstance(detail, str) else detail for detail in details))


class UserError(DkanError):
    """The input or a setting is wrong; the message says what was expected."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A setting is unknown or out of range."""


class DataError(UserError, ValueError):
    """A source file, column or row is not what was expected."""


class UnreadableError(DataError):
    """A file cannot be reached; nothing is known against its content, and the next attempt may succeed."""


class OutputError(UserError):
    """The output folder cannot take the result."""


class ClusterUnreachableError(DkanError):
    """A Kubernetes cluster does not answer; it may do so later."""


class DeploymentError(DkanError):
    """The cluster accepted a model but does not serve it; the message quotes the cluster."""


class GateError(DkanError):
    """A result is not good enough; the message names the limit and what misses it."""


class TrainingError(DkanError):
    """A process of a training run died; the message has its name and traceback."""
