"""Settings of the server (``dkan serve``)."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from dkan_core.config.schema import STRICT, Expected, reports_config_errors, setting
from dkan_core.errors import ConfigError

# What URLs, Kubernetes and Prometheus all take as it is.
MODEL_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"


@reports_config_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServeConfig:
    """Settings of the server of a model."""

    name: Annotated[
        str,
        Field(pattern=MODEL_NAME),
        Expected("at most 63 letters, digits, dots, dashes and underscores, the first and last a letter or digit"),
    ] = setting("model", "Server")
    """Name of the model in URLs."""

    host: str = setting("0.0.0.0", "Server")
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65_535)] = setting(8080, "Server")
    """HTTP port; 0 picks a free one, which is logged."""

    grpc_port: Annotated[int, Field(ge=0, le=65_535)] | None = setting(None, "Server")
    """gRPC port; 0 picks a free one. Default: no gRPC."""

    workers: Annotated[int, Field(ge=1, le=256)] = setting(1, "Server")
    """Server processes, each with the whole model."""

    # With two threads on a busy machine a row took 20 times as long: they wait for each other.
    threads: Annotated[int, Field(ge=1, le=1024)] = setting(1, "Server")
    """Scoring threads per worker. More than 1 helps only with requests of thousands of rows."""

    # Measured with 32 clients: 100-row requests went through twice as fast as alone, and no faster than alone with 256.
    max_batch_rows: Annotated[int, Field(ge=1, le=1_000_000)] = setting(1024, "Batching")
    """Maximum rows of concurrent requests to score together; a larger request is scored alone."""

    # Waiting for 2 ms brought no more rows a second: those that come while a batch is scored are enough for the next.
    max_wait_ms: Annotated[float, Field(ge=0, le=60_000)] = setting(0.0, "Batching")
    """Milliseconds that a request waits for others; at 0, only requests that arrive while the model is busy are
    scored together."""

    max_request_mb: Annotated[int, Field(ge=1, le=2047)] = setting(32, "Server")
    """Maximum size of a request in megabytes."""

    grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = setting(30, "Server")
    """Seconds that requests have to finish after the server is told to stop."""

    def __post_init__(self) -> None:
        if self.port and self.port == self.grpc_port:
            raise ConfigError(f"grpc_port must differ from port; both are {self.port}")
        if self.grpc_port == 0 and self.workers > 1:
            raise ConfigError(f"grpc_port 0: {self.workers} workers need one port to share; name it")
