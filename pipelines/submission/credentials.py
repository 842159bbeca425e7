"""Credentials for a Kubeflow server, kept out of everything that is printed."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp.client import KF_PIPELINES_SA_TOKEN_ENV, KF_PIPELINES_SA_TOKEN_PATH, TokenCredentialsBase


class RefusedError(Exception):
    """The submission is wrong, or the server refuses it; a retry would not help."""


@dataclass(kw_only=True)
class Credentials(TokenCredentialsBase):  # type: ignore[misc]
    """A bearer token, read again for each request since it expires, or cookies; not both."""

    token_file: Path | None = None
    cookies_file: Path | None = None
    secrets: set[str] = field(default_factory=set, repr=False)
    """Every secret read so far."""

    def __post_init__(self) -> None:
        if self.token_file:
            self._read(self.token_file)

    @property
    def cookies(self) -> str | None:
        """The text of the Cookie header."""
        text = self._read(self.cookies_file) if self.cookies_file else None
        for pair in (text or "").split(";"):
            self._remember(pair.partition("=")[2].strip())
        return text

    def refresh_api_key_hook(self, config: Any) -> None:
        """Put the current token into a client's configuration."""
        if self.token_file:
            config.api_key["authorization"] = self._read(self.token_file)

    def clean(self, text: str) -> str:
        """Return ``text`` without secrets, and without characters that would confuse a terminal or XML."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)

    def _read(self, path: Path) -> str:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise RefusedError(f"{path}: {reason}") from None
        # A line end inside would cause an error that quotes the whole header.
        if not text or not text.isascii() or not text.isprintable():
            raise RefusedError(f"{path}: expected one line of ASCII text")
        self._remember(text)
        return text

    def _remember(self, secret: str) -> None:
        # Shorter texts are no secrets, and would mask ordinary words.
        if len(secret) >= 6:
            self.secrets.add(secret)


def service_account_token() -> Path:
    """Return the file into which the cluster projects a pod's token for Kubeflow Pipelines."""
    return Path(os.environ.get(KF_PIPELINES_SA_TOKEN_ENV) or KF_PIPELINES_SA_TOKEN_PATH)
