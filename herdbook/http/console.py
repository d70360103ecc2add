"""The console's files, and the page that logs in once.

Invariants:
- Only files of the package are served, under their own names, by a list that is made at the start.
- A page of the console loads nothing from anywhere else and runs no script but its own files.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Place

from herdbook.http.gate import Gate
from herdbook.http.login import once

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_INDEX: Final = "index.html"


@dataclass(frozen=True, slots=True)
class _File:
    source: Traversable
    kind: str


def console_places(gate: Gate) -> list[Place]:
    """A place for each file of the console, for its page at `/`, and for `/login`."""
    folder = files("herdbook").joinpath("console")
    found = dict(_files(folder, "")) if folder.is_dir() else {}
    places = [Place(f"/{name}", _serving(each), methods=["GET"]) for name, each in found.items()]
    if _INDEX in found:
        places.append(Place("/", _serving(found[_INDEX]), methods=["GET"]))
    return [*places, Place("/login", once, methods=["GET"])]


def _files(folder: Traversable, above: str) -> "list[tuple[str, _File]]":
    told = []
    for each in sorted(folder.iterdir(), key=lambda one: one.name):
        name = above + each.name
        kind = _KINDS.get(PurePosixPath(name).suffix)
        if each.is_dir() and not each.name.startswith(("_", ".")):
            told += _files(each, name + "/")
        elif kind is not None:
            told.append((name, _File(each, kind)))
    return told


def _serving(file: _File) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        # Read anew each time: it is small, in the system's cache, and may be worked on.
        content = file.source.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {
            "ETag": etag,
            "Cache-Control": "no-cache",
            "Content-Security-Policy": POLICY,
        }
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=file.kind)

    return answer
