"""A simulation of the Kubeflow Model Registry server, with SQLite.

    python -m examples.lifecycle.registry_server --port 8080 --database registry.sqlite

The real server is a Go program that no Python package includes. This one has the part of its REST API that clients use
to register and find models, with the same rules: the body of every request and response follows the OpenAPI schema of
the client package (``mr_openapi``); names are unique among siblings, and external ids among entities of a kind, or else
the response is 409; if the parent does not exist, it is 404. It shows that a client uses the API correctly, not that it
works with the real server, its database, proxies or permissions.
"""

import argparse
import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mr_openapi as api
import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

PATHS = ("v1", "v1alpha3")
PAGE_SIZE = 20

SCHEMA = """
CREATE TABLE IF NOT EXISTS registered_model (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER CHECK (parent IS NULL),
    name TEXT NOT NULL UNIQUE, external_id TEXT UNIQUE, content TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS model_version (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER NOT NULL REFERENCES registered_model(id),
    name TEXT NOT NULL, external_id TEXT UNIQUE, content TEXT NOT NULL, UNIQUE (parent, name)
);
CREATE TABLE IF NOT EXISTS artifact (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER REFERENCES model_version(id),
    name TEXT NOT NULL, external_id TEXT UNIQUE, content TEXT NOT NULL, UNIQUE (parent, name)
);
"""


class RefusedError(Exception):
    """A request that the server refuses, with the status of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of entity: its table, its schemas, and its name in paths and messages."""

    table: str
    title: str
    create: Any
    update: Any
    entity: Any
    listed: Any
    parent_key: str | None = None


MODEL = Kind(
    table="registered_model",
    title="registered model",
    create=api.RegisteredModelCreate,
    update=api.RegisteredModelUpdate,
    entity=api.RegisteredModel,
    listed=api.RegisteredModelList,
)
VERSION = Kind(
    table="model_version",
    title="model version",
    create=api.ModelVersionCreate,
    update=api.ModelVersionUpdate,
    entity=api.ModelVersion,
    listed=api.ModelVersionList,
    parent_key="registeredModelId",
)
ARTIFACT = Kind(
    table="artifact",
    title="artifact",
    create=api.ModelArtifactCreate,
    update=api.ModelArtifactUpdate,
    entity=api.Artifact,
    listed=api.ArtifactList,
)


def checked(schema: Any, content: Any) -> dict[str, Any]:
    """Return a body as parsed by a schema, with its defaults.

    Raises:
        ValueError: It does not match the schema, or has a field that the schema does not have.
    """
    found = schema.from_dict(content)
    instance = getattr(found, "actual_instance", None) or found
    known = {field.alias or name for name, field in type(instance).model_fields.items()}
    if unknown := {*content} - known:
        raise ValueError(f"unknown field {min(unknown)!r}")
    # Without fields that are read-only for clients: ids and times.
    plain: dict[str, Any] = found.to_dict()
    return plain


def answer(schema: Any, content: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a response, after checking that it matches a schema."""
    checked(schema, content)
    return content


class Store:
    """The entities, each as JSON text, with separate columns for unique and searched fields."""

    def __init__(self, path: Path | str) -> None:
        # One connection and one request at a time: the server handles requests in threads.
        self._lock = threading.RLock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.executescript(f"PRAGMA foreign_keys = ON; {SCHEMA}")

    def create(self, kind: Kind, content: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
        """Add an entity, and return it."""
        now = str(int(time.time() * 1000))
        times = {"createTimeSinceEpoch": now, "lastUpdateTimeSinceEpoch": now}
        name = content.get("name") or f"unnamed-{time.time_ns()}"
        row = (parent, name, content.get("externalId"), json.dumps({**content, "name": name, **times}))
        with self._lock:
            try:
                added = self._database.execute(
                    f"INSERT INTO {kind.table} (parent, name, external_id, content) VALUES (?, ?, ?, ?)", row
                )
            except sqlite3.IntegrityError as error:
                if "FOREIGN KEY" in str(error):
                    raise RefusedError(404, f"no parent found for id {parent}") from error
                raise RefusedError(409, f"{kind.title} with name {name} already exists") from error
            return self.get(kind, str(added.lastrowid))

    def update(self, kind: Kind, id: str, content: dict[str, Any]) -> dict[str, Any]:
        """Update the given fields of an entity, and return it."""
        with self._lock:
            merged = {**self.get(kind, id), **content, "lastUpdateTimeSinceEpoch": str(int(time.time() * 1000))}
            self._database.execute(f"UPDATE {kind.table} SET content = ? WHERE id = ?", (json.dumps(merged), id))
            return self.get(kind, id)

    def get(self, kind: Kind, id: str) -> dict[str, Any]:
        """Return an entity by its id."""
        if not id.isdecimal():
            raise RefusedError(400, f"invalid {kind.title} id {id!r}")
        rows = self._select(kind, {"id": int(id)})
        if not rows:
            raise RefusedError(404, f"no {kind.title} found for id {id}")
        return rows[0]

    def find(self, kind: Kind, name: str | None, external_id: str | None, parent: str | None) -> dict[str, Any]:
        """Return the entity with this name in its parent, or with this external id."""
        nameless = name is None or (kind is not MODEL and parent is None)
        if nameless and external_id is None:
            raise RefusedError(400, "invalid parameters call, supply either a name with its parent, or externalId")
        wanted = {"name": name, "external_id": external_id, "parent": parent}
        rows = self._select(kind, {column: value for column, value in wanted.items() if value is not None})
        if len(rows) != 1:
            raise RefusedError(404, f"{len(rows)} {kind.title}s found for {wanted}")
        return rows[0]

    def page(self, kind: Kind, parent: str | None, size: int, token: str) -> dict[str, Any]:
        """Return a page of entities, and the token of the next page."""
        rows = self._select(kind, {"parent": parent} if parent else {})
        rest = [row for row in rows if int(row["id"]) > int(token or 0)]
        more = rest[size - 1]["id"] if len(rest) > size else ""
        items = rest[:size]
        return {"items": items, "size": len(items), "pageSize": size, "nextPageToken": more}

    def _select(self, kind: Kind, where: dict[str, Any]) -> list[dict[str, Any]]:
        condition = " AND ".join(f"{column} = ?" for column in where) or "1"
        query = f"SELECT id, parent, content FROM {kind.table} WHERE {condition} ORDER BY id"
        with self._lock:
            rows = self._database.execute(query, [*where.values()]).fetchall()
        parents = [{kind.parent_key: str(row[1])} if kind.parent_key else {} for row in rows]
        return [{**json.loads(row[2]), "id": str(row[0]), **extra} for row, extra in zip(rows, parents, strict=True)]


def router(store: Store) -> APIRouter:
    """Return the routes of the API, without the prefix of its version."""
    routes = APIRouter()
    _add_common_routes(routes, store, MODEL)
    _add_common_routes(routes, store, VERSION)

    @routes.post("/registered_models", status_code=201)
    def create_model(content: dict[str, Any]) -> Any:
        return answer(MODEL.entity, store.create(MODEL, checked(MODEL.create, content)))

    @routes.post("/model_versions", status_code=201)
    def create_version(content: dict[str, Any]) -> Any:
        asked = checked(VERSION.create, content)
        return answer(VERSION.entity, store.create(VERSION, asked, parent=asked["registeredModelId"]))

    @routes.get("/registered_models/{id}/versions")
    def versions_of(id: str, pageSize: int = PAGE_SIZE, nextPageToken: str = "") -> Any:
        store.get(MODEL, id)
        return answer(VERSION.listed, store.page(VERSION, id, pageSize, nextPageToken))

    @routes.get("/model_versions/{id}/artifacts")
    def artifacts_of(id: str, pageSize: int = PAGE_SIZE, nextPageToken: str = "") -> Any:
        store.get(VERSION, id)
        return answer(ARTIFACT.listed, store.page(ARTIFACT, id, pageSize, nextPageToken))

    @routes.post("/model_versions/{id}/artifacts")
    def upsert_artifact(id: str, content: dict[str, Any]) -> JSONResponse:
        asked = checked(ARTIFACT.entity, content)
        known = content.get("id")
        entity = store.update(ARTIFACT, known, asked) if known else store.create(ARTIFACT, asked, id)
        return JSONResponse(answer(ARTIFACT.entity, entity), 200 if known else 201)

    @routes.get("/model_artifact")
    def find_artifact(
        name: str | None = None,
        externalId: str | None = None,
        parentResourceId: str | None = None,
    ) -> Any:
        return answer(ARTIFACT.entity, store.find(ARTIFACT, name, externalId, parentResourceId))

    @routes.get("/model_artifacts/{id}")
    def get_artifact(id: str) -> Any:
        return answer(ARTIFACT.entity, store.get(ARTIFACT, id))

    return routes


def _add_common_routes(routes: APIRouter, store: Store, kind: Kind) -> None:
    @routes.get(f"/{kind.table}s")
    def list_them(pageSize: int = PAGE_SIZE, nextPageToken: str = "") -> Any:
        return answer(kind.listed, store.page(kind, None, pageSize, nextPageToken))

    @routes.get(f"/{kind.table}s/{{id}}")
    def get(id: str) -> Any:
        return answer(kind.entity, store.get(kind, id))

    @routes.patch(f"/{kind.table}s/{{id}}")
    def update(id: str, content: dict[str, Any]) -> Any:
        return answer(kind.entity, store.update(kind, id, checked(kind.update, content)))

    @routes.get(f"/{kind.table}")
    def find(
        name: str | None = None,
        externalId: str | None = None,
        parentResourceId: str | None = None,
    ) -> Any:
        return answer(kind.entity, store.find(kind, name, externalId, parentResourceId))


def application(database: Path | str, paths: tuple[str, ...] = PATHS) -> FastAPI:
    """Return the application of the server.

    Args:
        database: File that holds the entities.
        paths: Versions of the API to serve; older servers have only v1alpha3.
    """
    app, store = FastAPI(), Store(database)
    for path in paths:
        app.include_router(router(store), prefix=f"/api/model_registry/{path}")

    @app.exception_handler(RefusedError)
    def refuse(_: Request, error: RefusedError) -> JSONResponse:
        return JSONResponse(api.Error(code=str(error.status), message=str(error)).to_dict(), error.status)

    @app.exception_handler(ValueError)
    def refuse_content(_: Request, error: ValueError) -> JSONResponse:
        return JSONResponse(api.Error(code="400", message=str(error)).to_dict(), 400)

    return app


def main() -> None:
    """Serve until the process is told to stop."""
    parser = argparse.ArgumentParser(description="Serve a simulation of the Kubeflow Model Registry.")
    parser.add_argument("--port", type=int, default=0, help="port of this machine to listen on; default: a free one")
    parser.add_argument("--database", type=Path, required=True, help="file of the SQLite database")
    parser.add_argument(
        "--api", action="append", choices=PATHS, help="version of the API; may be repeated; default: all"
    )
    options = parser.parse_args()
    app = application(options.database, tuple(options.api or PATHS))
    config = uvicorn.Config(app, host="127.0.0.1", port=options.port, log_level="warning")
    with config.bind_socket() as listening:
        # A socket that is only bound refuses connections. From here on they are queued, so the address can be printed.
        listening.listen()
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)  # noqa: T201
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
