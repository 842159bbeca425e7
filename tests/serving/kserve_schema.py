"""The schema of KServe's documents, as its SDK has it, read strictly: an unknown field or another type is an error."""

import importlib
import re
from typing import Any

from dkan_core.serving.kserve_library import import_kserve

PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "object": (object,),
    # Of an int or a text.
    "IntOrString": (int, str),
    "ResourceQuantity": (int, str),
}


class SchemaError(Exception):
    """A document is not what the schema says."""


def check_kserve(document: Any, kind: str, where: str = "") -> None:
    """Raise SchemaError unless a document is what the SDK's model ``kind`` says."""
    import_kserve()
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        _check_type(document, (list,), kind, where)
        for number, item in enumerate(document):
            check_kserve(item, match[1], f"{where}[{number}]")
    elif match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        _check_type(document, (dict,), kind, where)
        for name, value in document.items():
            check_kserve(value, match[1], f"{where}.{name}")
    elif kind in PLAIN:
        _check_type(document, PLAIN[kind], kind, where)
    else:
        _check_fields(document, kind, where)


def _check_fields(document: Any, kind: str, where: str) -> None:
    model = next(
        getattr(module, kind)
        for module in map(importlib.import_module, ("kserve.models", "kserve", "kubernetes.client"))
        if hasattr(module, kind)
    )
    _check_type(document, (dict,), kind, where)
    types = {json_name: model.openapi_types[name] for name, json_name in model.attribute_map.items()}
    # In JSON an int or a text; the generator knows only objects there.
    loose = {"port": "IntOrString"} if kind in ("V1HTTPGetAction", "V1TCPSocketAction") else {}
    for name, value in document.items():
        if name not in types:
            raise SchemaError(f"{where}: {kind} has no field {name!r}")
        check_kserve(value, loose.get(name, types[name]), f"{where}.{name}")


def _check_type(value: Any, expected: tuple[type, ...], kind: str, where: str) -> None:
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected and object not in expected):
        raise SchemaError(f"{where}: expected {kind}, got {value!r}")
