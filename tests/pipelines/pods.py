"""The pods that a compiled pipeline becomes: what the driver of Kubeflow Pipelines makes of each step.

Parameters take the values given, their defaults, or an example of their type; outputs of tasks take an example.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from dkan_core.config.kubernetes import QUANTITY
from pipelines.lint.documents import ROOT, Compiled, parse, read_documents
from pipelines.lint.scopes import PLACEHOLDER, type_name

EXAMPLES: dict[str, Any] = {
    "STRING": "example",
    "NUMBER_INTEGER": 1,
    "NUMBER_DOUBLE": 0.5,
    "BOOLEAN": True,
    "LIST": ["example"],
    "STRUCT": {"example": "example"},
}

APPLIED = {
    "secret_as_env", "secret_as_volume", "config_map_as_env", "config_map_as_volume", "pvc_mount", "node_selector",
    "tolerations", "image_pull_secret", "image_pull_policy", "active_deadline_seconds", "field_path_as_env",
    "empty_dir_mounts", "generic_ephemeral_volume", "security_context", "pod_metadata",
}  # fmt: skip
"""Settings that become part of the pod below; another one would be left out here without a word."""

BY_THE_DRIVER = {"argostub/createpvc", "argostub/deletepvc"}
"""Images of steps that the driver does itself, without a pod."""

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""What a volume may be called; it is called like its secret, config map or claim."""


class PodError(Exception):
    """The driver would fail, or the cluster would refuse the pod, for a reason that its schema does not hold."""


def pods_of(path: Path, **values: Any) -> dict[str, dict[str, Any]]:
    """Return the pods of the pipeline at ``path``, by the path of their tasks.

    Raises:
        PodError: One cannot be made.
    """
    compiled, findings = parse(read_documents(path))
    assert compiled is not None and not findings, findings
    given = _with_defaults(compiled.components[ROOT], values, required=True)
    return dict(_walk(compiled, ROOT, given, ""))


def _with_defaults(component: Any, given: dict[str, Any], *, required: bool) -> dict[str, Any]:
    values = {}
    for name, parameter in component.input_definitions.parameters.items():
        if parameter.HasField("default_value"):
            values[name] = _python(parameter.default_value)
        elif required and not parameter.is_optional:
            values[name] = EXAMPLES[type_name(parameter.parameter_type)]
        else:
            values[name] = None
    return values | given


def _walk(compiled: Compiled, name: str, values: dict[str, Any], above: str) -> Iterator[tuple[str, dict[str, Any]]]:
    graph = compiled.components[name]
    for task_name, task in graph.dag.tasks.items():
        place = f"{above}/{task_name}" if above else task_name
        component = compiled.components[task.component_ref.name]
        inputs = {key: _value(source, values) for key, source in task.inputs.parameters.items()}
        inputs = {key: _filled(value, inputs) for key, value in inputs.items()}
        iterator = task.parameter_iterator
        if iterator.item_input:
            items = json.loads(iterator.items.raw) if iterator.items.raw else inputs[iterator.items.input_parameter]
            kind = type_name(component.input_definitions.parameters[iterator.item_input].parameter_type)
            inputs[iterator.item_input] = items[0] if isinstance(items, list) and items else EXAMPLES[kind]
        if component.HasField("dag"):
            inner = _with_defaults(component, inputs, required=False)
            yield from _walk(compiled, task.component_ref.name, inner, place)
            continue
        container = compiled.executors[component.executor_label].container
        if container.image and container.image not in BY_THE_DRIVER:
            try:
                pod = _container(container, inputs)
                if component.executor_label in compiled.kubernetes:
                    _extend(pod, compiled.kubernetes[component.executor_label], values)
                _check(pod["spec"])
            except PodError as error:
                raise PodError(f"{place}: {error}") from None
            yield place, pod


def _value(source: Any, values: dict[str, Any]) -> Any:
    """Resolve a reference among the values of the graph around."""
    kind = source.WhichOneof("kind")
    if kind == "component_input_parameter":
        return values[source.component_input_parameter]
    return _python(source.runtime_value.constant) if kind == "runtime_value" else EXAMPLES["STRING"]


def _python(value: Message) -> Any:
    """Return a JSON value, its whole numbers without a fraction."""
    return json.loads(json.dumps(json_format.MessageToDict(value)), parse_float=_number)


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _filled(value: Any, inputs: dict[str, Any]) -> Any:
    """Fill the placeholders in a text; as the driver does, with nothing for what is no text."""
    if not isinstance(value, str):
        return value
    return PLACEHOLDER.sub(lambda match: inputs[match[2]] if isinstance(inputs[match[2]], str) else "", value)


def _container(container: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    resources, accelerator = container.resources, container.resources.accelerator
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    for into, name, text in (
        (limits, "cpu", resources.resource_cpu_limit),
        (limits, "memory", resources.resource_memory_limit),
        (requests, "cpu", resources.resource_cpu_request),
        (requests, "memory", resources.resource_memory_request),
    ):
        if text:
            into[name] = _quantity(name, _filled(text, inputs))
    device, count = _filled(accelerator.resource_type, inputs), _filled(accelerator.resource_count, inputs)
    if device and count:  # without either the driver asks for none and says nothing
        limits[device] = _quantity(device, count)
    main = {
        "name": "main",
        "image": _text("image", _filled(container.image, inputs)),
        "command": ["launcher"],
        "args": [*container.command, *container.args],
        "env": [{"name": variable.name, "value": variable.value} for variable in container.env],
        "resources": {"limits": limits, "requests": requests},
        "volumeMounts": [],
    }
    spec = {"containers": [main], "restartPolicy": "Never", "volumes": []}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "step"}, "spec": spec}


def _extend(pod: dict[str, Any], config: Any, values: dict[str, Any]) -> None:
    """Add the Kubernetes settings of a step to its pod; names come from the values of the graph around it."""
    unknown = {field.name for field, _ in config.ListFields()} - APPLIED
    if unknown:
        raise PodError(f"no pod made here has {', '.join(sorted(unknown))}")
    spec = pod["spec"]
    main = spec["containers"][0]
    main["env"] += _variables(config, values)
    for volume, mount in (*_named_volumes(config, values), *_scratch_volumes(config)):
        spec["volumes"].append(volume)
        main["volumeMounts"].append({"name": volume["name"], **mount})
    secrets = [_name("image pull secret", secret, "secret_name", values) for secret in config.image_pull_secret]
    spec["imagePullSecrets"] = [{"name": name} for name in secrets if name is not None]
    spec["nodeSelector"] = _node_selector(config.node_selector, values)
    spec["tolerations"] = [item for entry in config.tolerations for item in _tolerations(entry, values)]
    if config.active_deadline_seconds:
        spec["activeDeadlineSeconds"] = config.active_deadline_seconds
    if config.image_pull_policy:
        main["imagePullPolicy"] = config.image_pull_policy
    if config.HasField("security_context"):
        set_fields = {field.json_name: value for field, value in config.security_context.ListFields()}
        main["securityContext"] = set_fields | {"capabilities": {"drop": ["ALL"]}}
    pod["metadata"] |= json_format.MessageToDict(config.pod_metadata)


def _name(what: str, holder: Any, field: str, values: dict[str, Any]) -> str | None:
    """Return a name, or None where an optional parameter was left out."""
    name = getattr(holder, field, "")
    if holder.HasField(f"{field}_parameter"):
        name = _value(getattr(holder, f"{field}_parameter"), values)
    return None if name is None else _text(f"name of the {what}", name)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise PodError(f"{what} is {value!r}: the driver wants a text that is not empty")
    return value


def _quantity(what: str, value: Any) -> str:
    if not QUANTITY.fullmatch(value):
        raise PodError(f"{what} is {value!r}, which is no quantity")
    return str(value)


def _variables(config: Any, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kinds = (
        ("secret", "secret_key", "secretKeyRef", config.secret_as_env),
        ("config map", "config_map_key", "configMapKeyRef", config.config_map_as_env),
    )
    for what, key, reference, entries in kinds:
        for entry in entries:
            name = _name(what, entry, key.replace("key", "name"), values)
            optional = {"optional": entry.optional} if entry.HasField("optional") else {}
            for pair in entry.key_to_env if name is not None else ():
                source = {reference: {"name": name, "key": getattr(pair, key), **optional}}
                yield {"name": pair.env_var, "valueFrom": source}
    for entry in config.field_path_as_env:
        yield {"name": entry.name, "valueFrom": {"fieldRef": {"fieldPath": entry.field_path}}}


def _named_volumes(config: Any, values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for entry in config.pvc_mount:
        if (name := _name("claim", entry, "pvc_name", values)) is not None:
            mount = {"mountPath": entry.mount_path} | ({"subPath": entry.sub_path} if entry.sub_path else {})
            yield {"name": name, "persistentVolumeClaim": {"claimName": name}}, mount
    for entry in config.secret_as_volume:
        if (name := _name("secret", entry, "secret_name", values)) is not None:
            source = {"secretName": name, "optional": entry.optional}
            yield {"name": name, "secret": source}, {"mountPath": entry.mount_path}
    for entry in config.config_map_as_volume:
        if (name := _name("config map", entry, "config_map_name", values)) is not None:
            source = {"name": name, "optional": entry.optional}
            yield {"name": name, "configMap": source}, {"mountPath": entry.mount_path}


def _scratch_volumes(config: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for entry in config.empty_dir_mounts:
        source = {"medium": entry.medium} if entry.medium else {}
        if entry.size_limit:
            source["sizeLimit"] = _quantity("sizeLimit", entry.size_limit)
        yield {"name": entry.volume_name, "emptyDir": source}, {"mountPath": entry.mount_path}
    for entry in config.generic_ephemeral_volume:
        claim: dict[str, Any] = {
            "accessModes": list(entry.access_modes),
            "resources": {"requests": {"storage": _quantity("size", entry.size)}},
        }
        if not entry.default_storage_class:
            claim["storageClassName"] = entry.storage_class_name
        template = {"metadata": json_format.MessageToDict(entry.metadata), "spec": claim}
        yield (
            {"name": entry.volume_name, "ephemeral": {"volumeClaimTemplate": template}},
            {"mountPath": entry.mount_path},
        )


def _node_selector(selector: Any, values: dict[str, Any]) -> dict[str, str]:
    if not selector.HasField("node_selector_json"):
        return dict(selector.labels)
    labels = _value(selector.node_selector_json, values)
    if not isinstance(labels, dict | None):
        raise PodError(f"node selector is {labels!r}: the driver wants labels by name")
    return labels or {}


def _tolerations(toleration: Any, values: dict[str, Any]) -> list[dict[str, Any]]:
    if not toleration.HasField("toleration_json"):
        content = json_format.MessageToDict(toleration)
        if "tolerationSeconds" in content:
            content["tolerationSeconds"] = int(content["tolerationSeconds"])
        return [content]
    given = _value(toleration.toleration_json, values)
    if not isinstance(given, dict | list | None):
        raise PodError(f"toleration is {given!r}: the driver wants one, or a list of them")
    return given if isinstance(given, list) else [given] if given else []


def _check(spec: dict[str, Any]) -> None:
    """Raise what the cluster says of names in a pod; its schema does not hold it."""
    volumes = [volume["name"] for volume in spec["volumes"]]
    mounts = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    variables = [variable["name"] for variable in spec["containers"][0]["env"]]
    for name in volumes:
        if not LABEL.fullmatch(name):
            raise PodError(f"volume {name!r} is no DNS label")
    for what, names in (("volumes", volumes), ("mount paths", mounts), ("variables", variables)):
        if len(set(names)) < len(names):
            raise PodError(f"{what} occur twice: {', '.join(sorted(names))}")
