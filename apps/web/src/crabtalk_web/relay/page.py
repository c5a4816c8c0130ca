"""The page: files of one folder, under a policy that lets them talk to this relay and nobody else.

They are kept in memory, compressed, for as long as they are on disk as they were. A path that is no
file and asks for a document gets the page itself, which knows its own paths.
"""

import asyncio
import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from .errors import not_found
from .quiet_routes import BANNER

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text becomes a script. The one policy of that name starts the page's own workers.
        "require-trusted-types-for 'script'",
        "trusted-types crabtalk",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # A page that was replaced must not go on with half of its old files.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
# What the system's own tables know is another matter on each machine.
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
}
WORKER = "worker.js"
# Stands in the service worker for the digest of the whole page: a browser that looks for a newer
# page compares that file alone.
UNVERSIONED = b'"unversioned"'


@dataclass(frozen=True, slots=True)
class Stamp:
    """Another stamp, another file."""

    changed: int
    size: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A file as it is served."""

    stamp: Stamp
    type: str
    body: bytes
    zipped: bytes | None
    digest: str


class Page:
    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._leaves: dict[Path, Leaf] = {}

    async def get(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if self._folder is None:
            if path:
                raise not_found("Route")
            return web.Response(text=BANNER, headers=HEADERS)
        return served(request, await asyncio.to_thread(self._leaf_of, self._folder, path))

    def _leaf_of(self, folder: Path, path: str) -> Leaf:
        file = found(folder, path)
        leaf = self._leaf(file)
        if file != folder / WORKER:
            return leaf
        body = leaf.body.replace(UNVERSIONED, f'"{self._version(folder)}"'.encode())
        return made(leaf.stamp, leaf.type, body)

    def _leaf(self, file: Path) -> Leaf:
        about = file.stat()
        stamp = Stamp(about.st_mtime_ns, about.st_size)
        leaf = self._leaves.get(file)
        if leaf is None or leaf.stamp != stamp:
            leaf = self._leaves[file] = made(stamp, type_of(file), file.read_bytes())
        return leaf

    def _version(self, folder: Path) -> str:
        digest = hashlib.sha256()
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.resolve().is_relative_to(folder):
                digest.update(f"{file.relative_to(folder)} {self._leaf(file).digest}\n".encode())
        return digest.hexdigest()[:16]


def found(folder: Path, path: str) -> Path:
    index = folder / "index.html"
    if not path:
        return index
    if "\0" in path or path.startswith(("v1/", "v2/", "v3/")):
        raise not_found("Route")
    file = (folder / path).resolve()
    if file.is_relative_to(folder) and file.is_file():
        return file
    if "." in path.rpartition("/")[2]:
        raise not_found("File")
    return index


def type_of(file: Path) -> str:
    guessed = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return TYPES.get(file.suffix, guessed)


def made(stamp: Stamp, kind: str, body: bytes) -> Leaf:
    zipped = gzip.compress(body, 9, mtime=0)
    is_smaller = len(zipped) < len(body)
    digest = hashlib.sha256(body).hexdigest()[:32]
    return Leaf(stamp, kind, body, zipped if is_smaller else None, digest)


def served(request: web.Request, leaf: Leaf) -> web.Response:
    # Weak, because it stands for the file however it is compressed.
    headers = {**HEADERS, "ETag": f'W/"{leaf.digest}"'}
    if any(tag.value in (leaf.digest, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    body = leaf.body
    if leaf.zipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = leaf.zipped
    charset = "utf-8" if leaf.type.startswith("text/") else None
    return web.Response(body=body, headers=headers, content_type=leaf.type, charset=charset)
