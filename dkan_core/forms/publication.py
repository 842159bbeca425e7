"""The steps after training in a pipeline: the gate, and how a model is published, registered and served."""

import re
from collections.abc import Mapping
from typing import Any

from dkan_core.config.kubernetes import NAME_RULE, Rule, or_empty, within
from dkan_core.errors import ConfigError
from dkan_core.forms.uris import DATE
from dkan_core.serving.inference_service import NAME, storage_uri

SERVER = re.compile(r"https?://[^/\s]+(/\S*)?")


PUBLICATION_RULES = {
    "min_average_precision": within(0, 1),
    "max_psi": within(0),
    "registry_url": or_empty(Rule(SERVER.fullmatch, "an address such as http://registry.example:8080")),
    "inference_service": or_empty(
        Rule(NAME.fullmatch, "a name of at most 40 lowercase letters, digits and hyphens that begins with a letter")
    ),
    **dict.fromkeys(("serving_runtime", "serving_account"), or_empty(NAME_RULE)),
    "serving_timeout": within(1),
}
"""Rule for the value of each parameter of a form."""


def check_publication(form: Mapping[str, Any]) -> None:
    """Check the parameters of a pipeline's last steps before its first steps, which may take hours.

    Args:
        form: Values of a form by name.

    Raises:
        ConfigError: A value is not valid, or does not fit another one.
    """
    if fault := find_invalid_publication(form):
        raise ConfigError(fault)


def find_invalid_publication(form: Mapping[str, Any]) -> str:
    """Return the first fault in the values of a form, which have the form's types.

    >>> find_invalid_publication({"inference_service": "late", "publish_uri": ""})
    "parameter 'inference_service' needs 'publish_uri', which is empty"
    >>> find_invalid_publication({"inference_service": "late", "publish_uri": "s3://bucket/models/late"})
    ''
    """
    for name, rule in PUBLICATION_RULES.items():
        if name in form and not rule.holds(form[name]):
            return f"parameter {name!r} must be {rule.expected}, got {form[name]!r}"
    uri = (form.get("publish_uri") or "").strip()
    for name in ("registry_url", "inference_service"):
        if form.get(name) and not uri:
            return f"parameter {name!r} needs 'publish_uri', which is empty"
    # Only scoring has a form with a model; its rows need no label.
    if form.get("min_average_precision") and form.get("label") == "" and form.get("model_uri"):
        return "parameter 'min_average_precision' needs 'label', which is empty"
    if form.get("registry_url") and not form.get("registered_name") and uri.strip("/").endswith(DATE):
        return f"parameter 'registered_name' is empty, and would be the date, as 'publish_uri' ends with {DATE}"
    try:
        if form.get("inference_service"):
            storage_uri(form.get("serving_uri") or uri)
    except ConfigError as error:
        return str(error)
    return ""
