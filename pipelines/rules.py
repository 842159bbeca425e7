"""What the value of each parameter must be, where its type alone does not say so."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dkan_core.serving.inference_service import NAME as SERVICE_NAME
from pipelines.lint.executors import QUANTITY

# An image, with registry, port, tag and digest.
IMAGE = re.compile(r"[a-zA-Z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")
OBJECT_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# The fields of a toleration, and what each may be.
TOLERATION: dict[str, Callable[[Any], bool]] = {
    "key": lambda value: isinstance(value, str),
    "operator": lambda value: value in ("Exists", "Equal", ""),
    "value": lambda value: isinstance(value, str),
    "effect": lambda value: value in ("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
    "tolerationSeconds": lambda value: type(value) is int,
}


class Rule(NamedTuple):
    """What the value of a parameter must be."""

    holds: Callable[[Any], object]
    """Whether a value is that."""

    expected: str
    """What it is, for a message."""


def _within(low: int, high: int | None = None) -> Rule:
    if high is None:
        return Rule(lambda value: value >= low, f"at least {low}")
    return Rule(lambda value: low <= value <= high, f"from {low} to {high}")


def _is_toleration(fields: Any) -> bool:
    """Tell whether Kubernetes accepts a toleration.

    ``Exists`` has no value, and anything else needs a key; seconds are those after an eviction.
    """
    if not isinstance(fields, dict) or fields.keys() - TOLERATION.keys():
        return False
    if not all(TOLERATION[name](value) for name, value in fields.items()):
        return False
    if "tolerationSeconds" in fields and fields.get("effect") != "NoExecute":
        return False
    return not fields.get("value") if fields.get("operator") == "Exists" else bool(fields.get("key"))


QUANTITY_RULE = Rule(QUANTITY.fullmatch, "a quantity such as 4, 500m or 16Gi")
NAME_RULE = Rule(OBJECT_NAME.fullmatch, "a name of small letters, digits, hyphens and dots")
SELECTOR_RULE = Rule(
    lambda value: all(isinstance(text, str) for text in value.values()),
    'a JSON object of texts such as {"pool": "gpu"}',
)
TOLERATIONS_RULE = Rule(
    lambda value: all(map(_is_toleration, value)),
    'a JSON list of tolerations such as [{"key": "gpu", "operator": "Exists"}]',
)
RULES = {
    "image": Rule(IMAGE.fullmatch, "an image such as registry.example/dkan:0.2.0"),
    **dict.fromkeys(("secret_name", "config_map_name", "pvc_name"), NAME_RULE),
    # Kubeflow gives a pod no GPU where it is empty.
    "gpu_type": Rule(bool, "a resource name such as nvidia.com/gpu"),
    **dict.fromkeys(("cpu", "memory", "step_cpu", "step_memory"), QUANTITY_RULE),
    **dict.fromkeys(("node_selector", "step_node_selector"), SELECTOR_RULE),
    **dict.fromkeys(("tolerations", "step_tolerations"), TOLERATIONS_RULE),
    "sweep": Rule(
        lambda value: value and all(isinstance(each, dict) for each in value),
        'a JSON list such as [{"learning_rate": 0.01}]',
    ),
    "inference_service": Rule(
        lambda value: not value or SERVICE_NAME.fullmatch(value),
        "a name of at most 40 small letters, digits and hyphens that begins with a letter",
    ),
    "min_average_precision": _within(0, 1),
    "max_psi": _within(0),
    "num_parts": _within(1),
    "worst_errors": _within(0),
    "serving_timeout": _within(1),
}
