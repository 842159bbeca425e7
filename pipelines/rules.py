"""What the value of each parameter must be, where its type alone does not say so."""

import re

from dkan_core.config.kubernetes import LABEL_RULE, NAME_RULE, POD_RULES, Rule, or_empty
from dkan_core.serving.inference_service import NAME as SERVICE_NAME

# An image, with registry, port, tag and digest.
IMAGE = re.compile(r"[a-zA-Z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")
SERVER = re.compile(r"https?://[^/\s]+(/\S*)?")


def _within(low: int, high: int | None = None) -> Rule:
    if high is None:
        return Rule(lambda value: value >= low, f"at least {low}")
    return Rule(lambda value: low <= value <= high, f"from {low} to {high}")


OPTIONAL_NAME_RULE = or_empty(NAME_RULE)
PLACE_RULE = Rule(str.strip, "a path or URI, not empty")
RULES = {
    "image": Rule(IMAGE.fullmatch, "an image such as registry.example/dkan:0.2.0"),
    "config_map_name": NAME_RULE,
    # Kubeflow names volumes after them.
    **dict.fromkeys(("secret_name", "pvc_name"), LABEL_RULE),
    **dict.fromkeys(("serving_runtime", "serving_account"), OPTIONAL_NAME_RULE),
    **dict.fromkeys(("data_uri", "model_uri", "output_uri", "run_uri"), PLACE_RULE),
    "registry_url": or_empty(Rule(SERVER.fullmatch, "an address such as http://registry.example:8080")),
    **POD_RULES,
    **{f"step_{name}": rule for name, rule in POD_RULES.items()},
    "inference_service": or_empty(
        Rule(
            SERVICE_NAME.fullmatch,
            "a name of at most 40 lowercase letters, digits and hyphens that begins with a letter",
        )
    ),
    "min_average_precision": _within(0, 1),
    "max_psi": _within(0),
    "num_parts": _within(1),
    "worst_errors": _within(0),
    "serving_timeout": _within(1),
}
