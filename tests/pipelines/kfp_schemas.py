"""The fields that each version of Kubeflow Pipelines knows, from the schemas in its packages.

kfp_schemas.json was made of the wheels of each version's first release, without installing them:

    for version in 2.14.0 2.15.0 2.16.0 2.17.0; do
        pip download --no-deps --dest wheels kfp-kubernetes==$version kfp-pipeline-spec==$version
    done
    python -m tests.pipelines.kfp_schemas wheels > tests/pipelines/kfp_schemas.json
"""

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

SCHEMAS = Path(__file__).with_suffix(".json")
MODULES = ("kubernetes_executor_config_pb2.py", "pipeline_spec_pb2.py")


def fields_of_version(version: str) -> set[tuple[str, str]]:
    """Return the fields that a version knows, by full name of the message and JSON name of the field."""
    messages = json.loads(SCHEMAS.read_text())
    return {
        (message, field)
        for message, fields in messages.items()
        for field, versions in fields.items()
        if version in versions.split()
    }


def fields_of_file(file: FileDescriptorProto) -> set[tuple[str, str]]:
    """Return the fields in a file of a schema, by full name of the message and JSON name of the field."""
    found: dict[str, DescriptorProto] = {}
    for message in file.message_type:
        found |= dict(_messages(message, file.package))
    return {(name, field.json_name or _json_name(field.name)) for name in found for field in found[name].field}


def _messages(message: DescriptorProto, above: str) -> Iterator[tuple[str, DescriptorProto]]:
    name = f"{above}.{message.name}"
    if not message.options.map_entry:
        yield name, message
    for inner in message.nested_type:
        yield from _messages(inner, name)


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _files(wheel: Path) -> Iterator[FileDescriptorProto]:
    """Yield the schemas in a wheel, from the text of its modules."""
    with zipfile.ZipFile(wheel) as archive:
        for module in archive.namelist():
            if module.endswith(MODULES):
                for node in ast.walk(ast.parse(archive.read(module))):
                    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "AddSerializedFile":
                        yield FileDescriptorProto.FromString(ast.literal_eval(node.args[0]))


def _write(folder: Path) -> None:
    messages: dict[str, dict[str, str]] = {}
    for wheel in sorted(folder.glob("*.whl")):
        version = ".".join(wheel.name.split("-")[1].split(".")[:2])
        for file in _files(wheel):
            for message, field in sorted(fields_of_file(file)):
                fields = messages.setdefault(message, {})
                fields[field] = f"{fields.get(field, '')} {version}".strip()
    json.dump(dict(sorted(messages.items())), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
