"""The model card, ``README.md`` of a model folder."""

from typing import Any

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.model.architecture import ModelConfig
from dkan_core.report.templating import render_markdown


def model_card(config: ModelConfig, preprocessor: Preprocessor, metrics: dict[str, Any]) -> str:
    """Return what a person should know of a model, as Markdown."""
    return render_markdown(
        "model_card",
        config=config,
        layers=[*config.hidden, len(config.labels)],
        metrics=metrics,
        numeric=[feature.name for feature in preprocessor.numeric],
        categories=[feature.name for feature in preprocessor.coded if feature.kind == "category"],
    )
