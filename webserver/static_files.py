"""Files that pages load: scripts, styles, icons, read once at the start and served with their compressed form.

All lie under one address that carries a hash of all of them, so a browser may keep them for ever and never mixes two
versions. Promises that only files that were there at the start are served: no path is ever built from a request.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

import flask
from werkzeug.exceptions import NotFound

FOLDER = Path(__file__).with_name("static")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
_WORTH_PACKING = frozenset({".css", ".js", ".svg", ".json", ".txt"})


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes | None  # gzip
    content_type: str


class StaticFiles:
    """The files below `folder`. `prefix` is the path under which they are served."""

    def __init__(self, folder: Path = FOLDER) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in _TYPES)
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in paths}
        digest = hashlib.sha256()
        for name, file in self._files.items():
            digest.update(f"{name}\0{len(file.content)}\0".encode() + file.content)
        self.prefix = f"/static/{digest.hexdigest()[:12]}"

    def url(self, name: str) -> str:
        """The address of a file; raises `KeyError` for one that is not there, so a wrong name shows at once."""
        self._files[name]
        return f"{self.prefix}/{name}"

    def answer(self, version: str, name: str) -> flask.Response:
        """The file; under another version than the present one it may be answered, but not kept."""
        file = self._files.get(name)
        if file is None:
            raise NotFound()
        request = flask.request
        packed = file.packed is not None and request.accept_encodings.quality("gzip") > 0
        response = flask.Response(file.packed if packed else file.content, content_type=file.content_type)
        if packed:
            response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
        current = self.prefix.endswith(f"/{version}")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if current else "no-cache"
        return response

    def blueprint(self) -> flask.Blueprint:
        """The route that serves them."""
        blueprint = flask.Blueprint("static_files", __name__)
        blueprint.add_url_rule(
            "/static/<version>/<path:name>", "file", self.answer, methods=["GET"], provide_automatic_options=False
        )
        return blueprint


def _read(path: Path) -> _File:
    content = path.read_bytes()
    packed = gzip.compress(content, 6, mtime=0) if path.suffix in _WORTH_PACKING and len(content) > 500 else None
    return _File(content, packed, _TYPES[path.suffix])
