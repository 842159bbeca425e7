"""The Open Inference Protocol over gRPC: KServe's service, with our errors and limits."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc_interceptor.server import AsyncServerInterceptor
from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from kserve.protocol.grpc.servicer import InferenceServicer

from dkan_core.errors import ConfigError, DkanError
from dkan_core.serving.facts import begin_request, logger

STATUS = {
    DkanError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    ModelNotReady: grpc.StatusCode.UNAVAILABLE,
    NotImplementedError: grpc.StatusCode.UNIMPLEMENTED,
}
NO_REPOSITORY = "models are neither loaded nor unloaded by request"
# The service's method that scores.
SCORES = "ModelInfer"


class _Servicer(InferenceServicer):  # type: ignore[misc] # the library has no types
    """KServe's service without its calls that load and unload models, open to anyone who reaches the port."""

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        raise NotImplementedError(NO_REPOSITORY)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        raise NotImplementedError(NO_REPOSITORY)


class _Gateway(AsyncServerInterceptor):
    """Outermost layer of the service: converts errors, and counts and logs each answer."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def intercept(self, method: Callable[..., Any], request: Any, context: Any, method_name: str) -> Any:
        """Return the answer to a call."""
        facts = begin_request("gRPC", method_name)
        code = grpc.StatusCode.OK
        try:
            return await method(request, context)
        except asyncio.CancelledError:
            # Cancelled by the client, by its deadline, or at the end of the server's grace period.
            code, facts.error = grpc.StatusCode.CANCELLED, "the call was cancelled"
            raise
        except Exception as error:
            found = (status for kind, status in STATUS.items() if isinstance(error, kind))
            code = next(found, grpc.StatusCode.INTERNAL)
            facts.error = str(error)
            if code == grpc.StatusCode.INTERNAL:
                logger.exception("a call failed")
                facts.error = "internal error; see the server log"
            await context.abort(code, facts.error)
        finally:
            if method_name.endswith(SCORES) or facts.error:
                facts.finish(self._name, code.name)


def grpc_server(
    dataplane: DataPlane, name: str, host: str, port: int, *, max_bytes: int, shared: bool
) -> tuple[Any, int]:
    """Return a server that listens once it is started, and its port.

    Args:
        dataplane: The model.
        name: The model's name, for the metrics.
        host: Address to listen on.
        port: 0 takes a free one.
        max_bytes: Of a message.
        shared: Whether other processes listen on that port, too.

    Raises:
        ConfigError: It cannot listen there.
    """
    options = [
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", max_bytes),
        ("grpc.so_reuseport", int(shared)),
    ]
    server = grpc.aio.server(interceptors=(_Gateway(name),), options=options)
    add_GRPCInferenceServiceServicer_to_server(_Servicer(dataplane, None), server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return server, server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"grpc_port {port}: cannot listen there ({error})") from None
