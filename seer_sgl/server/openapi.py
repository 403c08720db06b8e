"""`GET /openapi.json`: the description of all routes, made of the types that handlers state."""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Collection, Iterable, Iterator
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Self

import msgspec
from aiohttp import web

from .auth import ADMIN_ROUTES, OPEN
from .json import JSON_TYPE, dumps
from .operations import EVENTS_TYPE, STATED, EngineError, Error, FleetError, Operation, operation

REFERENCE = "#/components/schemas/{name}"
# Any route may answer with these, a server with a token also with 401.
REFUSALS = (400, 403, 404, 408, 409, 413, 429, 500, 502, 503)

ERRORS = (Error, EngineError, FleetError)


def add_openapi(app: web.Application, *, client: bool, admin: bool) -> None:
    """Adds the route. It describes the routes that the application has at the first request.

    `client`: whether all routes need a bearer token; `admin`: whether admin routes do.
    """
    body = b""

    @operation(returns=dict[str, Any])
    async def openapi(_: web.Request) -> web.Response:
        """Returns this description."""
        nonlocal body
        secured = {
            route
            for route in app.router.routes()
            if client or (admin and route in app[ADMIN_ROUTES])
        }
        body = body or dumps(description(app.router.routes(), secured))
        return web.Response(body=body, content_type=JSON_TYPE)

    app.router.add_get("/openapi.json", openapi)


def description(
    routes: Iterable[web.AbstractRoute], secured: Collection[web.AbstractRoute]
) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 description of routes. `secured`: which need a bearer token."""
    found = (_Route.of(route, route in secured) for route in routes)
    described = [each for each in found if each is not None]
    schemas = _Schemas(kind for each in described for kind in each.types())
    paths: dict[str, dict[str, Any]] = {}
    for each in described:
        paths.setdefault(each.path, {})[each.method] = each.describe(schemas)
    components: dict[str, Any] = {"schemas": schemas.components}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "seer-sgl", "version": version("seer-sgl")},
        "paths": paths,
        "components": components,
    }
    if secured:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return document


class _Schemas:
    """The JSON schemas of types. `components`: of the named ones, by name."""

    def __init__(self, types: Iterable[Any]) -> None:
        names = list({repr(kind): kind for kind in (*ERRORS, *types)}.values())
        schemas, self.components = msgspec.json.schema_components(names, ref_template=REFERENCE)
        self._schemas = {repr(kind): schema for kind, schema in zip(names, schemas, strict=True)}
        for kind in _named(names):
            self._describe(kind)

    def of(self, kind: Any) -> dict[str, Any]:
        """Returns the schema of a type, or of the types in a tuple."""
        if isinstance(kind, tuple):
            return {"anyOf": [self.of(each) for each in kind]}
        return self._schemas[repr(kind)]

    def _describe(self, kind: type[Any]) -> None:
        schema = self.components.get(kind.__name__)
        if schema is None:
            return
        schema["description"] = inspect.cleandoc(kind.__doc__ or "")
        for name, text in _field_docs(kind):
            if name in schema["properties"]:
                schema["properties"][name]["description"] = text


class _Route(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    docstring: str
    types_of: Operation
    secured: bool

    @classmethod
    def of(cls, route: web.AbstractRoute, secured: bool) -> Self | None:
        """Returns an application's route; None for the HEAD that goes with a GET."""
        if route.resource is None or route.method in ("HEAD", "*"):
            return None
        handler: Any = inspect.unwrap(route.handler)
        if not inspect.isroutine(handler):
            handler = type(handler).__call__
        stated = getattr(handler, STATED, Operation())
        docstring = inspect.getdoc(handler) or ""
        path = route.resource.canonical
        return cls(route.method.lower(), path, docstring, stated, secured and path not in OPEN)

    def types(self) -> Iterator[Any]:
        """Yields the types of its bodies and parameters."""
        stated = self.types_of
        kinds = (stated.reads, stated.returns, stated.streams, *stated.query.values())
        for kind in kinds:
            yield from kind if isinstance(kind, tuple) else () if kind is None else (kind,)

    def describe(self, schemas: _Schemas) -> dict[str, Any]:
        """Returns the OpenAPI operation."""
        stated, (summary, _, rest) = self.types_of, self.docstring.partition("\n")
        described: dict[str, Any] = {
            "operationId": f"{self.method} {self.path}",
            "summary": summary.rstrip("."),
            "responses": {str(stated.status): self._success(schemas)} | _refusals(self.secured),
        }
        if self.secured:
            described["security"] = [{"bearer": []}]
        if rest.strip():
            described["description"] = rest.strip()
        names = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        parameters = [_parameter(name, "path", {"type": "string"}) for name in names]
        for name, kind in stated.query.items():
            parameters.append(_parameter(name, "query", schemas.of(kind)))
        if parameters:
            described["parameters"] = parameters
        if stated.reads is not None:
            content = {JSON_TYPE: {"schema": schemas.of(stated.reads)}}
            described["requestBody"] = {"required": not stated.optional, "content": content}
        return described

    def _success(self, schemas: _Schemas) -> dict[str, Any]:
        stated, content = self.types_of, {}
        if stated.returns is not None:
            content[JSON_TYPE] = {"schema": schemas.of(stated.returns)}
        if stated.streams is not None:
            content[stated.media] = {"itemSchema": _event(stated, schemas)}
        success: dict[str, Any] = {"description": HTTPStatus(stated.status).phrase}
        return success | ({"content": content} if content else {})


def _event(stated: Operation, schemas: _Schemas) -> dict[str, Any]:
    """Returns the schema of an item of a stream, in OpenAPI 3.2's form for its media type."""
    value = schemas.of(stated.streams)
    if stated.media != EVENTS_TYPE:
        return value
    reply = {"type": "string", "contentMediaType": JSON_TYPE, "contentSchema": value}
    data = {"anyOf": [{"const": "[DONE]"}, reply]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _refusals(secured: bool) -> dict[str, Any]:
    kinds = [REFERENCE.format(name=kind.__name__) for kind in ERRORS]
    schema = {"anyOf": [{"$ref": kind} for kind in kinds]}
    statuses = sorted({*REFUSALS, 401} if secured else REFUSALS)
    return {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": {JSON_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


def _parameter(name: str, where: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _named(kinds: Iterable[Any]) -> Iterator[type[Any]]:
    """Yields the structs and typed dicts among types and their parts."""
    for kind in kinds:
        if isinstance(kind, type) and "__annotations__" in vars(kind):
            yield kind
            yield from _named(inspect.get_annotations(kind).values())
        else:
            yield from _named(getattr(kind, "__args__", ()))


def _field_docs(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yields (field, docstring) of a class: the texts that stand behind its fields."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for field, behind in itertools.pairwise(body):
        match field, behind:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
