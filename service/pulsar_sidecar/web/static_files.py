"""The dashboard's own and vendored static files, read once; browsers fetch nothing from another host.

`static/vendored.json` lists the vendored ones: origin, version, licence and checksum.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.model.errors import NotFoundError

PREFIX = "/ui/static/"
_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_ALWAYS = "public, max-age=31536000, immutable"

router = APIRouter()


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A static file with its media type and version."""

    content: bytes
    kind: str
    version: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return all files by name."""
    own = files("pulsar_sidecar.web").joinpath("static").iterdir()
    shared = files("pulsar_sidecar.reports").joinpath("templates", "page.css")
    found = {}
    for file in (*own, shared):
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = StaticFile(content, kind, hashlib.sha256(content).hexdigest()[:12])
    return found


def versioned(name: str) -> str:
    """Return the address of a file, which changes with its content."""
    return f"{PREFIX}{name}?v={static_files()[name].version}"


@router.get(PREFIX + "{name}")
async def static_file(name: str, request: Request) -> Response:
    file = static_files().get(name)
    if file is None:
        raise NotFoundError("the dashboard has no such file")
    kept = _ALWAYS if request.query_params.get("v") == file.version else "no-cache"
    return Response(file.content, media_type=file.kind, headers={"Cache-Control": kept})
