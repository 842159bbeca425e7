"""What the value of each parameter must be, where its type alone does not say so.

Those of what follows training are in ``dkan_core.serving.publication``, as its steps check them, too.
"""

import re

from dkan_core.config.kubernetes import LABEL_RULE, NAME_RULE, POD_RULES, Rule, or_empty, within

# An image, with registry, port, tag and digest.
IMAGE = re.compile(r"[a-zA-Z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")

OPTIONAL_NAME_RULE = or_empty(NAME_RULE)
URI_RULE = Rule(str.strip, "a path or URI, not empty")
RULES = {
    "image": Rule(IMAGE.fullmatch, "an image such as registry.example/dkan:0.2.0"),
    "config_map_name": NAME_RULE,
    # Kubeflow names volumes after them.
    **dict.fromkeys(("secret_name", "pvc_name"), LABEL_RULE),
    **dict.fromkeys(("data_uri", "model_uri", "output_uri", "run_uri"), URI_RULE),
    **POD_RULES,
    **{f"step_{name}": rule for name, rule in POD_RULES.items()},
    "num_parts": within(1),
    "worst_errors": within(0),
}
