"""Checks of a form's values for faults that would fail a run, some of them after hours.

The checks for the last steps are in ``dkan_core.forms.publication``, as a step makes them, too.
"""

import re
from collections.abc import Mapping
from typing import Any

from dkan_core.config import NodesConfig, PrepareConfig
from dkan_core.config.kubernetes import LABEL_RULE, NAME_RULE, POD_RULES, Rule, or_empty, within
from dkan_core.data.preparation.parallel import check_parts
from dkan_core.data.source.files import split_sources
from dkan_core.errors import ConfigError
from dkan_core.forms.publication import find_invalid_publication
from dkan_core.forms.settings import config_from_form, trainings_from_form
from dkan_core.forms.uris import find_invalid_uri
from dkan_core.training.setup.early_checks import check_split, check_training
from dkan_core.trainjob.body import settle

# A container image with optional registry, port, tag and digest.
IMAGE = re.compile(r"[a-zA-Z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")

OPTIONAL_NAME_RULE = or_empty(NAME_RULE)
URI_RULE = Rule(str.strip, "a path or URI, not empty")
# Rules for values, where the type is not enough.
RULES = {
    "image": Rule(IMAGE.fullmatch, "an image such as registry.example/dkan:0.3.0.dev0"),
    "config_map_name": NAME_RULE,
    # Kubeflow uses these names for volumes.
    **dict.fromkeys(("secret_name", "pvc_name"), LABEL_RULE),
    **dict.fromkeys(("model_uri", "output_uri", "run_uri"), URI_RULE),
    "data_uri": Rule(split_sources, URI_RULE.expected),
    **POD_RULES,
    **{f"step_{name}": rule for name, rule in POD_RULES.items()},
    "num_parts": within(1),
    "worst_errors": within(0),
}

# Parameters that require prepared_uri: for preparation by many pods, and for training on nodes.
OF_PREPARED = ("num_parts", "run_uri")


def find_faults(form: Mapping[str, Any]) -> list[str]:
    """Return the faults in the values of a form, which have the form's types.

    >>> find_faults({"memory": "64GB", "worst_errors": -3, "num_gpus": "8"})
    ["parameter 'memory' must be a quantity of at least 64Mi such as 16Gi, got '64GB'", \
"parameter 'worst_errors' must be at least 0, got -3"]
    >>> find_faults({"memory": "64Gi", "worst_errors": 3, "num_gpus": "8"})
    []
    """
    faults = [
        f"parameter {name!r} must be {RULES[name].expected}, got {value!r}"
        for name, value in form.items()
        if name in RULES and not RULES[name].holds(value)
    ]
    faults += filter(None, (check(form) for check in (_unfit_pair, find_invalid_publication, find_invalid_uri)))
    try:
        # Only from valid values, as this would find the same faults again.
        if not faults:
            _build_configs(form)
    except ConfigError as error:
        faults.append(str(error))
    return faults


def _unfit_pair(form: Mapping[str, Any]) -> str:
    """Return an error for a parameter that does not fit another one."""
    for name in OF_PREPARED:
        if form.get(name) and "prepared_uri" in form and not form["prepared_uri"].strip():
            return f"parameter {name!r} needs 'prepared_uri', which is empty"
    if form.get("pvc_name") and form["pvc_name"] == form.get("secret_name"):
        return f"parameter 'pvc_name' must differ from 'secret_name', got {form['pvc_name']!r}"
    return ""


def _build_configs(form: Mapping[str, Any]) -> None:
    """Build the settings as the steps do.

    Raises:
        ConfigError: One is unknown or out of bounds, or settings exclude each other.
    """
    if "split" in form:
        # The smoke pipeline's form has no label, as its data are bundled.
        config_from_form(PrepareConfig, {"label": "label", **form})
        if not form.get("split_column"):
            check_split(form["split"])
    if "prepared_uri" in form and "num_parts" in form:
        check_parts(form["num_parts"])
    if "model_kind" in form:
        for config in trainings_from_form(form):
            if "nodes" in form:
                settle(config, config_from_form(NodesConfig, form))
            else:
                check_training(config)
