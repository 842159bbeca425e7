"""The model card, ``README.md`` of a model folder."""

import html
import re
from typing import Any

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.model.architecture import ModelConfig


def model_card(config: ModelConfig, preprocessor: Preprocessor, metrics: dict[str, Any]) -> str:
    """Return what a person should know of a model, as Markdown."""
    numeric = [feature.name for feature in preprocessor.numeric]
    categories = [feature.name for feature in preprocessor.coded if feature.kind == "category"]
    lines = [
        f"# FastKAN model for {_names(config.labels)}",
        "",
        "Trained by dkan. Score new rows with `dkan predict FOLDER SRC... --out FILE`.",
        "",
        "| validation metric | value |",
        "|---|---:|",
        *(f"| {name} | {value} |" for name, value in metrics.items() if isinstance(value, int | float)),
        "",
        f"- Members: {config.members}",
        f"- Layers of each: {[*config.hidden, len(config.labels)]}",
        f"- Centers: {config.num_centers} on [{config.grid_min}, {config.grid_max}]",
        f"- Numeric features: {_names(numeric)}",
        f"- Categories: {_names(categories)}",
        "",
        "Probabilities are calibrated on the validation split. The model is no better than the data it saw.",
        "",
    ]
    return "\n".join(lines)


def _names(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(map(escape_markdown, names)) or "none"


def escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows as it is: names of columns and labels come from whoever wrote the data.

    >>> print(escape_markdown("a_b <img> [x](http://y)\n# z"))
    a\_b &lt;img&gt; \[x\]\(http\://y\) \# z
    """
    line = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"[\\`*_{}\[\]()#!|~:@]", r"\\\g<0>", html.escape(line, quote=False))
