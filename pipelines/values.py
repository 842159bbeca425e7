"""Values of a form that a run would fail on, some of them hours after it began."""

import math
import re
from collections.abc import Mapping
from typing import Any

from dkan_core.config import NodesConfig, PrepareConfig
from dkan_core.config.forms import config_from_form, training_from_form
from dkan_core.data.source.files import listed
from dkan_core.errors import ConfigError
from dkan_core.serving.inference_service import NAME as SERVICE_NAME
from dkan_core.training.setup.early_checks import check_training
from dkan_core.trainjob.body import settle
from pipelines.lint.executors import QUANTITY

# A parameter that another one cannot do without.
NEEDED_BY = {"registry_url": "publish_uri"}

# Kubeflow refuses an empty name, and gives a pod no GPU where the kind is empty.
NEVER_EMPTY = ("image", "secret_name", "config_map_name", "pvc_name", "gpu_type")
QUANTITIES = ("cpu", "memory", "step_cpu", "step_memory")
# Where steps find what they read, or leave something for others or for later.
PLACES = ("data_uri", "prepared_uri", "checkpoint_uri", "run_uri", "publish_uri", "output_uri", "model_uri")
PLACE = re.compile(r"\w+://|/")
RANGES: dict[str, tuple[int, int | None]] = {
    "min_average_precision": (0, 1),
    "max_psi": (0, None),
    "num_parts": (1, None),
    "worst_errors": (0, None),
    "serving_timeout": (1, None),
}
SELECTORS = ("node_selector", "step_node_selector")
OBJECTS = {
    "tolerations": '[{"key": "gpu", "operator": "Exists"}]',
    "step_tolerations": '[{"key": "gpu", "operator": "Exists"}]',
    "sweep": '[{"learning_rate": 0.01}]',
}


def find_fault(form: Mapping[str, Any]) -> str:
    """Return the first thing that is wrong with the values of a form, each of the type that the form says.

    >>> find_fault({"memory": "64GB", "num_gpus": "8"})
    "parameter 'memory' must be a quantity such as 4, 500m or 16Gi, got '64GB'"
    >>> find_fault({"memory": "64Gi", "num_gpus": "8"})
    ''
    """
    for name, needed in NEEDED_BY.items():
        if form.get(name) and needed in form and not form[needed]:
            return f"parameter {name!r} needs {needed!r}, which is empty"
    if form.get("min_average_precision") and form.get("label") == "" and "model_uri" in form:
        return "parameter 'min_average_precision' needs 'label', which is empty"
    for name, value in form.items():
        if expected := _expected(name, value):
            return f"parameter {name!r} must be {expected}, got {value!r}"
    try:
        _build_configs(form)
    except ConfigError as error:
        return str(error)
    return ""


def find_local_place(form: Mapping[str, Any]) -> str:
    """Return what is wrong with the first place that pods cannot share: what they leave there would be lost.

    >>> find_local_place({"data_uri": "s3://bucket/flights", "publish_uri": "models"})
    "parameter 'publish_uri' must be a URI such as s3://bucket/folder, or an absolute path on a volume, got 'models'"
    """
    for name in PLACES:
        # Several sources are separated by commas or lines.
        for place in listed(form.get(name) or ""):
            if not PLACE.match(place):
                expected = "a URI such as s3://bucket/folder, or an absolute path on a volume"
                return f"parameter {name!r} must be {expected}, got {place!r}"
    return ""


def _expected(name: str, value: Any) -> str:
    """Return what a step or Kubernetes expects of a value; nothing where that is what it is."""
    if name in NEVER_EMPTY and not value:
        return "a name"
    if name in RANGES:
        low, high = RANGES[name]
        if not low <= value <= (math.inf if high is None else high):
            return f"at least {low}" if high is None else f"from {low} to {high}"
    if name == "inference_service" and value and not SERVICE_NAME.fullmatch(value):
        return "a name of at most 40 small letters, digits and hyphens that begins with a letter"
    if name == "sweep" and value == []:
        return f"a JSON list such as {OBJECTS[name]}"
    if name in QUANTITIES and not QUANTITY.fullmatch(value):
        return "a quantity such as 4, 500m or 16Gi"
    if name in SELECTORS and not all(isinstance(text, str) for text in value.values()):
        return 'a JSON object of texts such as {"pool": "gpu"}'
    if name in OBJECTS and not all(isinstance(each, dict) for each in value):
        return f"a JSON list such as {OBJECTS[name]}"
    return ""


def _build_configs(form: Mapping[str, Any]) -> None:
    """Build the settings as the steps do.

    Raises:
        ConfigError: One is unknown or out of bounds, or settings exclude each other.
    """
    if "split" in form:
        # Smoke has no label in its form, as its data come with one.
        config_from_form(PrepareConfig, {"label": "label", **form})
    if "model_kind" in form:
        for settings in form.get("sweep", [form.get("settings", {})]):
            config = training_from_form(form, settings)
            if "nodes" in form:
                settle(config, config_from_form(NodesConfig, form))
            else:
                check_training(config)
