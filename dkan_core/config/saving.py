"""Settings of a run written to a file that ``--config`` reads."""

import json
from dataclasses import MISSING, fields
from typing import Any

from dkan_core.config.train import TrainConfig
from dkan_core.errors import redact

# By it the file is known to be ours.
BEGINNING = "# Settings of this run"

# Settings that name files of one run: with them, a repetition would resume that run instead of training again.
OF_ONE_RUN = ("checkpoint_uri", "resume")


def settings_text(asked: TrainConfig, chosen: TrainConfig) -> str:
    """Return settings as TOML: those that were asked for, and as comments what was chosen or is not to be repeated.

    >>> asked = TrainConfig(hidden=(8, 4), epochs=3, resume="auto")
    >>> print(settings_text(asked, TrainConfig(hidden=(8, 4), epochs=3, resume="auto", batch_size=64)))
    # Settings of this run; dkan train DIR --out RUN --config THIS_FILE trains with them again.
    hidden = [8, 4]
    epochs = 3
    # Of this run alone, not repeated:
    # resume = "auto"
    # Chosen by dkan:
    # batch_size = 64
    <BLANKLINE>
    """
    defaults = {each.name: each.default for each in fields(TrainConfig) if each.default is not MISSING}
    given = {name: getattr(asked, name) for name in defaults if getattr(asked, name) != defaults[name]}
    alone = {name: given.pop(name) for name in OF_ONE_RUN if name in given}
    found = {name: getattr(chosen, name) for name in defaults if getattr(chosen, name) != getattr(asked, name)}
    lines = [f"{BEGINNING}; dkan train DIR --out RUN --config THIS_FILE trains with them again."]
    lines += [f"{name} = {_toml(value)}" for name, value in given.items()]
    for title, comments in (("Of this run alone, not repeated", alone), ("Chosen by dkan", found)):
        if comments:
            lines += [f"# {title}:", *(f"# {name} = {_toml(value)}" for name, value in comments.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # JSON's text is TOML's, where no pairs of surrogates are written; only DEL is refused there as it is.
        return json.dumps(redact(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return "none" if value is None else repr(value)
