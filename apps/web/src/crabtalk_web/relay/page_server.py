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

from .errors import build_not_found_error
from .stub_routes import BANNER

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
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
}
SERVICE_WORKER = "worker.js"
# Stands in the service worker for the digest of the whole page: a browser that looks for a newer
# page compares that file alone.
UNVERSIONED = b'"unversioned"'


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Another stamp, another file."""

    changed: int
    size: int


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is served."""

    stamp: FileStamp
    type: str
    body: bytes
    gzipped: bytes | None
    digest: str


class PageServer:
    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._files: dict[Path, PageFile] = {}

    async def get(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if self._folder is None:
            if path:
                raise build_not_found_error("Route")
            return web.Response(text=BANNER, headers=HEADERS)
        return build_file_response(
            request, await asyncio.to_thread(self._find_page_file, self._folder, path)
        )

    def _find_page_file(self, folder: Path, path: str) -> PageFile:
        file = find_file(folder, path)
        leaf = self._load_page_file(file)
        if file != folder / SERVICE_WORKER:
            return leaf
        body = leaf.body.replace(UNVERSIONED, f'"{self._version(folder)}"'.encode())
        return build_page_file(leaf.stamp, leaf.type, body)

    def _load_page_file(self, file: Path) -> PageFile:
        about = file.stat()
        stamp = FileStamp(about.st_mtime_ns, about.st_size)
        leaf = self._files.get(file)
        if leaf is None or leaf.stamp != stamp:
            leaf = self._files[file] = build_page_file(
                stamp, guess_media_type(file), file.read_bytes()
            )
        return leaf

    def _version(self, folder: Path) -> str:
        digest = hashlib.sha256()
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.resolve().is_relative_to(folder):
                digest.update(
                    f"{file.relative_to(folder)} {self._load_page_file(file).digest}\n".encode()
                )
        return digest.hexdigest()[:16]


def find_file(folder: Path, path: str) -> Path:
    index = folder / "index.html"
    if not path:
        return index
    if "\0" in path or path.startswith(("v1/", "v2/", "v3/")):
        raise build_not_found_error("Route")
    file = (folder / path).resolve()
    if file.is_relative_to(folder) and file.is_file():
        return file
    if "." in path.rpartition("/")[2]:
        raise build_not_found_error("File")
    return index


def guess_media_type(file: Path) -> str:
    guessed = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return MEDIA_TYPES.get(file.suffix, guessed)


def build_page_file(stamp: FileStamp, kind: str, body: bytes) -> PageFile:
    zipped = gzip.compress(body, 9, mtime=0)
    is_smaller = len(zipped) < len(body)
    digest = hashlib.sha256(body).hexdigest()[:32]
    return PageFile(stamp, kind, body, zipped if is_smaller else None, digest)


def build_file_response(request: web.Request, leaf: PageFile) -> web.Response:
    # Weak, because it stands for the file however it is compressed.
    headers = {**HEADERS, "ETag": f'W/"{leaf.digest}"'}
    if any(tag.value in (leaf.digest, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    body = leaf.body
    if leaf.gzipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = leaf.gzipped
    charset = "utf-8" if leaf.type.startswith("text/") else None
    return web.Response(body=body, headers=headers, content_type=leaf.type, charset=charset)
