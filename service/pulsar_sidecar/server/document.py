"""Additions to the OpenAPI document that FastAPI derives from the routes: ids, summaries, errors, credentials.

Invariants: an operation's id is the name of its route, which stays when its path changes; its summary is the first
clause of its description; every error has the shape `Reason`, whatever its status.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic import TypeAdapter

from pulsar_sidecar.server.gate import OPEN_PATHS
from pulsar_sidecar.server.schemas import REASON, Reason

_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request is malformed; nothing was changed.",
    401: "The request has no credential, or one that does not verify.",
    403: "The caller's role may not do this.",
    404: "The path names a topic, namespace or other resource that does not exist.",
    405: "The feature is off, or the topic is not persistent.",
    409: "The request does not fit the current state; nothing was changed.",
    412: "The request does not match stored data, or a retry would not help.",
    413: "The body is too large.",
    500: "A defect of the sidecar; its log has the details.",
    503: "The request may succeed later; it may be repeated.",
}
_OF_EVERY_OPERATION: Final = frozenset({500, 503})
_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"WWW-Authenticate": "Authentication scheme."},
    503: {"Retry-After": "Seconds to wait."},
}
_END_OF_CLAUSE: Final = re.compile(r"[.:;](?=\s|$)")
_TOKEN: Final = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A Pulsar token."}


def complete(document: dict[str, Any], *, token_required: bool) -> dict[str, Any]:
    """Return the document with each operation's summary, errors and, unless it is an open path, its credential."""
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": _TOKEN}
    components["schemas"] = dict(sorted({**components.get("schemas", {}), Reason.__name__: _reason()}.items()))
    components["responses"] = {_name(status): _response(status) for status in _MEANINGS}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["summary"] = _summary(path, operation["description"])
            for status in sorted(_statuses(path, method, operation)):
                answer = {"$ref": f"#/components/responses/{_name(status)}"}
                operation["responses"].setdefault(str(status), answer)
            if "default" in operation["responses"]:
                operation["responses"]["default"]["description"] = "A broker's refusal, with the broker's status."
            if path not in OPEN_PATHS:
                # OpenAPI's way to declare the token optional is an empty alternative.
                operation["security"] = [{"token": []}] if token_required else [{"token": []}, {}]
    return document


def _reason() -> dict[str, Any]:
    return TypeAdapter(Reason).json_schema(mode="serialization")


def _summary(path: str, description: str) -> str:
    summary = _END_OF_CLAUSE.split(description, maxsplit=1)[0].replace("``", "")
    return f"{summary} (V1)" if "{property}" in path and "V1" not in summary else summary


def _statuses(path: str, method: str, operation: Mapping[str, Any]) -> frozenset[int]:
    if path in OPEN_PATHS:
        return _OF_EVERY_OPERATION
    found = _OF_EVERY_OPERATION | {400, 401, 403, 412}
    if "{" in path:
        found |= {404}
    if method != "get":
        found |= {405, 409}
    if "requestBody" in operation:
        found |= {413}
    return found


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.title().replace(" ", "")


def _response(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": _MEANINGS[status], "content": REASON}
    if headers := _HEADERS.get(status):
        answer["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
        }
    return answer
