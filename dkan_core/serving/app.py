"""The HTTP server's routes: those of KServe's library that do not change the server, with our errors and limits."""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from kserve.constants.constants import PredictorProtocol
from kserve.errors import InferenceError, InvalidInput, ModelNotFound, ModelNotReady
from kserve.protocol.dataplane import DataPlane, has_binary_headers
from kserve.protocol.infer_type import InferRequest
from kserve.protocol.rest.v1_endpoints import V1Endpoints
from kserve.protocol.rest.v2_datamodels import InferenceRequest
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import dkan_core
from dkan_core.errors import DkanError
from dkan_core.serving.facts import RequestFacts, begin_request, current_request
from dkan_core.serving.metrics import exposition
from dkan_core.serving.rows import NO_TEXTS, REQUEST
from dkan_core.utils.schemas import parse_json

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

HUNG_UP = "the client disconnected before the response was sent"
# Bytes of a refused body that are read and discarded: a client that is cut off while it sends may miss the answer.
DISCARDED_BYTES = 1 << 30

logger = logging.getLogger(__name__)

STATUS = {
    DkanError: HTTPStatus.BAD_REQUEST,
    InvalidInput: HTTPStatus.BAD_REQUEST,
    RequestValidationError: HTTPStatus.BAD_REQUEST,
    ModelNotFound: HTTPStatus.NOT_FOUND,
    ModelNotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    ClientDisconnect: HTTPStatus.BAD_REQUEST,
    # Raised by KServe's base class for calls that this model does not support, such as explanations.
    NotImplementedError: HTTPStatus.NOT_IMPLEMENTED,
}
"""HTTP status by error, whose message the client sees. Any other exception is a bug, answered without details."""


class ModelDataPlane(DataPlane):  # type: ignore[misc]
    """KServe's data plane with dkan's server metadata, which rejects malformed requests as the client's error."""

    def metadata(self) -> dict[str, Any]:
        """Return name and version of the server."""
        return {"name": "dkan", "version": dkan_core.__version__, "extensions": ["binary_tensor_data"]}

    def decode(
        self,
        body: bytes | InferenceRequest,
        headers: dict[str, str],
        protocol_version: str = PredictorProtocol.REST_V1.value,
        model_name: str | None = None,
    ) -> Any:
        """Return a request of either protocol, and its attributes where it is a CloudEvent."""
        if protocol_version == PredictorProtocol.REST_V1.value and not has_binary_headers(headers):
            # Parsed whatever type the header names: curl sends JSON as a form.
            return super().decode_cloudevent(_parsed(body))
        return super().decode(body, headers, protocol_version, model_name)

    def decode_inference_request(
        self, body: bytes | InferenceRequest, headers: dict[str, str], model_name: str
    ) -> InferRequest:
        """Return a request of the Open Inference Protocol."""
        try:
            if isinstance(body, bytes) and "inference-header-content-length" not in headers:
                # Plain JSON, sent with another content type, as by curl.
                body = InferenceRequest.model_validate_json(body)
            return super().decode_inference_request(body, headers, model_name)
        except ValidationError as error:
            raise InvalidInput(_described(error.errors())) from None
        except (InferenceError, struct.error):
            raise InvalidInput(f"{REQUEST}: {NO_TEXTS}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{REQUEST}: cannot be read ({type(error).__name__}: {error})") from None


def build_app(dataplane: DataPlane, name: str, max_bytes: int, lifespan: Lifespan) -> Any:
    """Return the application that a server of HTTP runs.

    Args:
        dataplane: The model.
        name: The model's name, for the metrics.
        max_bytes: Of a request's body.
        lifespan: What is to be there while requests are answered.
    """
    app = FastAPI(title="dkan", version=dkan_core.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_routes(app, dataplane)
    for kind in (*STATUS, Exception):
        app.add_exception_handler(kind, refuse)
    app.add_exception_handler(HTTPException, refuse_path)
    return _Gateway(app, name, max_bytes)


def _add_routes(app: FastAPI, dataplane: DataPlane) -> None:
    # KServe's own registration also has routes to load and unload models, open to anyone who reaches the port.
    first, second = V1Endpoints(dataplane), V2Endpoints(dataplane)
    for path, endpoint in (
        ("/", second.live),
        ("/metrics", metrics),
        ("/v1/models", first.models),
        ("/v1/models/{model_name}", first.model_ready),
        ("/v2", second.metadata),
        ("/v2/health/live", second.live),
        ("/v2/health/ready", second.ready),
        ("/v2/models", second.models),
        ("/v2/models/{model_name}", second.model_metadata),
        ("/v2/models/{model_name}/ready", second.model_ready),
    ):
        app.add_api_route(path, endpoint, methods=["GET"], response_model_exclude_none=True)
    for path, endpoint in (
        ("/v1/models/{model_name}:predict", first.predict),
        ("/v2/models/{model_name}/infer", second.infer),
    ):
        app.add_api_route(path, endpoint, methods=["POST"], response_model=None)


async def metrics() -> Response:
    """Return the metrics as Prometheus reads them."""
    content, kind = exposition()
    return Response(content, media_type=kind)


async def refuse(_: Request, error: Exception) -> JSONResponse:
    """Return the response to an error, with its message only."""
    found = (status for kind, status in STATUS.items() if isinstance(error, kind))
    status = next(found, HTTPStatus.INTERNAL_SERVER_ERROR)
    message = _described(error.errors()) if isinstance(error, RequestValidationError) else str(error)
    if isinstance(error, ClientDisconnect):
        message = HUNG_UP
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        message = "internal error; see the server log"
    current_request().error = message
    return JSONResponse({"error": message}, status)


async def refuse_path(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an unknown path, or to a method that its path does not allow."""
    assert isinstance(error, HTTPException), error
    if error.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        # Raised for bodies that the framework reads: it hides that the client disconnected.
        message = HUNG_UP if isinstance(error.__cause__, ClientDisconnect) else f"{REQUEST}: {error.detail}"
        current_request().error = message
        return JSONResponse({"error": message}, error.status_code, error.headers)
    routes = [route for route in request.app.routes if isinstance(route, APIRoute)]
    known = ", ".join(f"{method} {route.path}" for route in routes for method in route.methods or ())
    message = f"{REQUEST}: {request.method} {request.url.path}: no such route; available: {known}"
    current_request().error = message
    return JSONResponse({"error": message}, error.status_code, error.headers)


def _parsed(body: bytes) -> Any:
    """Return parsed JSON; NaN, which JSON does not allow, is accepted because Python's clients write it."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # Slower, but its messages are those for all JSON that dkan reads.
        return parse_json(body, REQUEST)


def _described(errors: Any) -> str:
    """Return the first error of a request that does not follow its protocol."""
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("body", "InferenceRequest"))
    return f"{REQUEST}: {field + ': ' if field else ''}{first['msg']}"


class _Gateway:
    """Outermost layer of the application: limits the body, and counts and logs each answer."""

    def __init__(self, app: FastAPI, name: str, max_bytes: int) -> None:
        self._app = app
        self._name = name
        self._max_bytes = max_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts = begin_request("REST", f"{scope['method']} {quote(scope['path'], safe='/:')}")
        status = HTTPStatus.INTERNAL_SERVER_ERROR

        is_begun = False

        async def note_status(message: Message) -> None:
            nonlocal status, is_begun
            await send(message)
            if message["type"] == "http.response.start":
                status, is_begun = HTTPStatus(message["status"]), True

        client = _Client(receive, self._max_bytes, facts)
        try:
            _check_encoding(scope)
            await self._app(scope, client.receive, note_status)
        except asyncio.CancelledError:
            # The server is shutting down, and its grace period is over.
            facts.error = "the server is ending"
            if not is_begun:
                response = JSONResponse({"error": facts.error}, HTTPStatus.SERVICE_UNAVAILABLE)
                await response(scope, receive, note_status)
        except _RefusedBodyError as error:
            if error.has_more:
                await _discard_body(receive)
            facts.error = f"{REQUEST}: {error.message}"
            response = JSONResponse({"error": facts.error}, error.status)
            await response(scope, receive, note_status)
        except Exception:
            # The framework has answered 500 and raises the error again, for the log that is written here.
            logger.exception("a request failed")
        finally:
            client.close()
        # Successful probes and scrapes are not logged, as they come every few seconds.
        if scope["method"] == "POST" or facts.error:
            facts.finish(self._name, int(status))


class _RefusedBodyError(BaseException):
    """The body is refused. Not an Exception, which the framework would turn into a response of its own."""

    def __init__(self, status: HTTPStatus, message: str, *, has_more: bool) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.has_more = has_more


def _check_encoding(scope: Message) -> None:
    encoding = Headers(scope=scope).get("content-encoding", "identity")
    if encoding.lower() != "identity":
        message = f"Content-Encoding {encoding!r} is not supported; send the body uncompressed"
        raise _RefusedBodyError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, has_more=True)


class _Client:
    """Messages from a client: a body of bounded size, and then its disconnect."""

    def __init__(self, receive: Receive, max_bytes: int, facts: RequestFacts) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._facts = facts
        self._received = 0
        self._end: asyncio.Task[Message] | None = None

    async def receive(self) -> Message:
        """Return the next message."""
        if self._end is not None:
            return await asyncio.shield(self._end)
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self._max_bytes:
            problem = f"is larger than {self._max_bytes >> 20} MB; send fewer rows at a time"
            has_more = message.get("more_body", False)
            raise _RefusedBodyError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, problem, has_more=has_more)
        if message["type"] == "http.request" and not message.get("more_body"):
            # The handler does not ask for more, so the disconnect is awaited here to stop useless work.
            self._end = asyncio.create_task(self._wait_for_end())
        return message

    async def _wait_for_end(self) -> Message:
        message = await self._receive()
        self._facts.is_gone = True
        return message

    def close(self) -> None:
        """Stop waiting for the disconnect, once the request is answered."""
        if self._end is not None:
            self._end.cancel()


async def _discard_body(receive: Receive) -> None:
    discarded = 0
    while discarded < DISCARDED_BYTES:
        message = await receive()
        discarded += len(message.get("body", b""))
        if not message.get("more_body"):
            return
