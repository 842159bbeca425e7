"""The data about a model sent to a model registry, and the registration that it returns."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    """The run of Kubeflow Pipelines that a model comes from; a version links to it."""

    id: str
    name: str = ""
    namespace: str = ""


@dataclass(frozen=True, kw_only=True)
class RegistryEntry:
    """The data about a model to register."""

    name: str
    """Name of the registered model."""

    version: str
    uri: str
    description: str
    format_name: str
    format_version: str

    identity: dict[str, str]
    """Properties that identify this model; those of a version never change."""

    properties: dict[str, str | int | float]
    """Further properties, its metrics among them."""

    run: PipelineRun | None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A version in a registry."""

    registry: str
    name: str
    version: str
    uri: str
    model_id: str
    version_id: str
    artifact_id: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} in {self.registry}: {self.uri}"

    def to_dict(self) -> dict[str, str]:
        """Return the registration as plain data."""
        return asdict(self)
