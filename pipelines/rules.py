"""What the value of each parameter must be, where its type alone does not say so."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dkan_core.serving.inference_service import NAME as SERVICE_NAME
from pipelines.lint.executors import QUANTITY

# An image, with registry, port, tag and digest.
IMAGE = re.compile(r"[a-zA-Z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")
OBJECT_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# A qualified name of Kubernetes, such as a label's or a resource's, and a label's value.
QUALIFIED_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
SERVER = re.compile(r"https?://[^/\s]+(/\S*)?")
CORES = re.compile(r"([0-9]+(?:\.[0-9]+)?)m?")
# Of a quantity's suffix.
DECIMAL, BINARY = "kMGTPE", "KMGTPE"
# Less and the kernel ends every step as it starts.
MIN_MEMORY = 64 << 20
# The fields of a toleration, and what each may be.
TOLERATION: dict[str, Callable[[Any], bool]] = {
    "key": lambda value: isinstance(value, str) and (not value or QUALIFIED_NAME.fullmatch(value) is not None),
    "operator": lambda value: value in ("Exists", "Equal", ""),
    "value": lambda value: isinstance(value, str) and LABEL_VALUE.fullmatch(value) is not None,
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


def _is_cores(value: str) -> bool:
    found = CORES.fullmatch(value)
    return found is not None and float(found[1]) > 0


def _is_memory(value: str) -> bool:
    """Tell whether a quantity is enough memory for a step.

    >>> _is_memory("16Gi"), _is_memory("64e9"), _is_memory("64"), _is_memory("100m"), _is_memory("64GB")
    (True, True, False, False, False)
    """
    found = QUANTITY.fullmatch(value)
    if found is None:
        return False
    unit = found[2] or ""
    factor = 1e-9 if unit == "n" else 1e-6 if unit == "u" else 1e-3 if unit == "m" else 1.0
    if unit.startswith("e"):
        factor = 10.0 ** int(unit[1:])
    elif unit.endswith("i"):
        factor = 1024.0 ** (1 + BINARY.index(unit[0]))
    elif unit and unit in DECIMAL.replace("k", "kK"):
        factor = 1000.0 ** (1 + DECIMAL.index(unit.replace("K", "k")))
    return float(value.removesuffix(unit)) * factor >= MIN_MEMORY


def _are_labels(value: dict[str, Any]) -> bool:
    return all(
        QUALIFIED_NAME.fullmatch(name) and isinstance(text, str) and LABEL_VALUE.fullmatch(text)
        for name, text in value.items()
    )


def _are_different(value: Any) -> bool:
    """Tell whether a list has objects, none of them twice: two runs of the same settings write to one place."""
    texts = [json.dumps(each, sort_keys=True) for each in value]
    return bool(texts) and all(isinstance(each, dict) for each in value) and len({*texts}) == len(texts)


CORES_RULE = Rule(_is_cores, "a number of cores above 0 such as 4 or 500m")
MEMORY_RULE = Rule(_is_memory, "a quantity of at least 64Mi such as 16Gi")
NAME_RULE = Rule(OBJECT_NAME.fullmatch, "a name of lowercase letters, digits, hyphens and dots")
OPTIONAL_NAME_RULE = Rule(lambda value: not value or OBJECT_NAME.fullmatch(value), NAME_RULE.expected)
PLACE_RULE = Rule(str.strip, "a path or URI, not empty")
SELECTOR_RULE = Rule(_are_labels, 'a JSON object of labels such as {"pool": "gpu"}')
TOLERATIONS_RULE = Rule(
    lambda value: all(map(_is_toleration, value)),
    'a JSON list of tolerations such as [{"key": "gpu", "operator": "Exists"}]',
)
RULES = {
    "image": Rule(IMAGE.fullmatch, "an image such as registry.example/dkan:0.2.0"),
    **dict.fromkeys(("secret_name", "config_map_name", "pvc_name"), NAME_RULE),
    **dict.fromkeys(("serving_runtime", "serving_account"), OPTIONAL_NAME_RULE),
    **dict.fromkeys(("data_uri", "model_uri", "output_uri"), PLACE_RULE),
    "registry_url": Rule(
        lambda value: not value or SERVER.fullmatch(value), "an address such as http://registry.example:8080"
    ),
    # Kubeflow gives a pod no GPU where it is empty.
    "gpu_type": Rule(QUALIFIED_NAME.fullmatch, "a resource name such as nvidia.com/gpu"),
    **dict.fromkeys(("cpu", "step_cpu"), CORES_RULE),
    **dict.fromkeys(("memory", "step_memory"), MEMORY_RULE),
    **dict.fromkeys(("node_selector", "step_node_selector"), SELECTOR_RULE),
    **dict.fromkeys(("tolerations", "step_tolerations"), TOLERATIONS_RULE),
    "sweep": Rule(_are_different, 'a JSON list such as [{"learning_rate": 0.01}], without the same settings twice'),
    "inference_service": Rule(
        lambda value: not value or SERVICE_NAME.fullmatch(value),
        "a name of at most 40 lowercase letters, digits and hyphens that begins with a letter",
    ),
    "min_average_precision": _within(0, 1),
    "max_psi": _within(0),
    "num_parts": _within(1),
    "worst_errors": _within(0),
    "serving_timeout": _within(1),
}
