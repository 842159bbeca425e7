"""What Kubernetes accepts as a name, a label, an amount."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

# Of the units of an amount.
FACTORS = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3},
    **{unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)},
}
# As it writes an amount: 500m, 16Gi, 1e3.
QUANTITY = re.compile(rf"([0-9]+(?:\.[0-9]+)?)({'|'.join(FACTORS)}|e[0-9]{{1,2}})?")
CORES = re.compile(r"([0-9]+(?:\.[0-9]+)?)m?")

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# A qualified name, such as a label's or a resource's, and a label's value.
DOMAIN, LOCAL_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/", r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
QUALIFIED_NAME = re.compile(f"({DOMAIN})?{LOCAL_NAME}", re.ASCII)
# Without a domain it would have to be one of its own, such as cpu.
EXTENDED_RESOURCE = re.compile(DOMAIN + LOCAL_NAME, re.ASCII)
LABEL_VALUE = re.compile(f"({LOCAL_NAME})?", re.ASCII)
VARIABLE = re.compile(r"(?!\.$|\.\.)[-.A-Za-z_][-.\w]*", re.ASCII)

# The fields of a toleration, and what each may be.
TOLERATION: dict[str, Callable[[Any], bool]] = {
    "key": lambda value: isinstance(value, str) and (not value or QUALIFIED_NAME.fullmatch(value) is not None),
    "operator": lambda value: value in ("Exists", "Equal", ""),
    "value": lambda value: isinstance(value, str) and LABEL_VALUE.fullmatch(value) is not None,
    "effect": lambda value: value in ("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
    # Numbers of a form may be floats.
    "tolerationSeconds": lambda value: type(value) in (int, float) and value % 1 == 0,
}


class Rule(NamedTuple):
    """What a value must be."""

    holds: Callable[[Any], object]
    """Whether a value is that."""

    expected: str
    """Description for a message."""


def _is_toleration(fields: Any) -> bool:
    """Return whether Kubernetes accepts a toleration.

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


def _bytes(value: str) -> float:
    """Return how much a quantity is; 0 for a text that is none.

    >>> _bytes("16Gi"), _bytes("64e9"), _bytes("64"), _bytes("100m"), _bytes("64GB")
    (17179869184.0, 64000000000.0, 64.0, 0.1, 0.0)
    """
    found = QUANTITY.fullmatch(value)
    if found is None:
        return 0.0
    number, unit = found[1], found[2]
    return float(number) * FACTORS[unit] if unit in FACTORS else float(value)


def _are_labels(value: dict[str, Any]) -> bool:
    return all(
        QUALIFIED_NAME.fullmatch(name) and isinstance(text, str) and LABEL_VALUE.fullmatch(text)
        for name, text in value.items()
    )


def or_empty(rule: Rule) -> Rule:
    """Return a rule that an empty text satisfies as well."""
    return Rule(lambda value: not value or rule.holds(value), rule.expected)


def within(low: int, high: int | None = None) -> Rule:
    """Return the rule of a number."""
    if high is None:
        return Rule(lambda value: value >= low, f"at least {low}")
    return Rule(lambda value: low <= value <= high, f"from {low} to {high}")


CORES_RULE = Rule(_is_cores, "a number of cores above 0 such as 4 or 500m")
# With less, the kernel ends every step as it starts.
MEMORY_RULE = Rule(lambda value: _bytes(value) >= 64 << 20, "a quantity of at least 64Mi such as 16Gi")
SHM_RULE = Rule(lambda value: _bytes(value) >= 1 << 20, "a quantity of at least 1Mi such as 8Gi")
NAME_RULE = Rule(DNS_SUBDOMAIN.fullmatch, "a name of lowercase letters, digits, hyphens and dots")
LABEL_RULE = Rule(DNS_LABEL.fullmatch, "a name of at most 63 lowercase letters, digits and hyphens")
RESOURCE_RULE = Rule(EXTENDED_RESOURCE.fullmatch, "a resource name such as nvidia.com/gpu")
LABELS_RULE = Rule(_are_labels, 'a JSON object of labels such as {"pool": "gpu"}')
TOLERATIONS_RULE = Rule(
    lambda value: all(map(_is_toleration, value)),
    'a JSON list of tolerations such as [{"key": "gpu", "operator": "Exists"}]',
)
# Of the pod that trains, as a form calls them.
POD_RULES = {
    "cpu": CORES_RULE,
    "memory": MEMORY_RULE,
    "node_selector": LABELS_RULE,
    "tolerations": TOLERATIONS_RULE,
}
VARIABLES_RULE = Rule(
    lambda value: all(map(VARIABLE.fullmatch, value)), 'a JSON object of variables such as {"NCCL_DEBUG": "INFO"}'
)
