"""Serves the page: the files of one folder, with a policy that allows connections only to this
relay.

Files are cached in memory, compressed, until they change on disk. A request for a document whose
path is no file gets the index, because the page handles its own paths.
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
        # Text cannot become a script. The page's own workers are started under the one named
        # policy.
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
    # A replaced page must not run with half of its old files.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
# The system's own tables differ between machines.
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
# Placeholder in the service worker for the digest of the whole page: browsers compare only that
# file to find a newer page.
UNVERSIONED = b'"unversioned"'


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Changes whenever the file does."""

    changed: int
    size: int


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file in the form in which it is served."""

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
        page_file = self._load_page_file(file)
        if file != folder / SERVICE_WORKER:
            return page_file
        body = page_file.body.replace(UNVERSIONED, f'"{self._version(folder)}"'.encode())
        return build_page_file(page_file.stamp, page_file.type, body)

    def _load_page_file(self, file: Path) -> PageFile:
        status = file.stat()
        stamp = FileStamp(status.st_mtime_ns, status.st_size)
        page_file = self._files.get(file)
        if page_file is None or page_file.stamp != stamp:
            page_file = self._files[file] = build_page_file(
                stamp, guess_media_type(file), file.read_bytes()
            )
        return page_file

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


def build_file_response(request: web.Request, page_file: PageFile) -> web.Response:
    # Weak, because it is the same for every compression of the file.
    headers = {**HEADERS, "ETag": f'W/"{page_file.digest}"'}
    if any(tag.value in (page_file.digest, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    body = page_file.body
    if page_file.gzipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = page_file.gzipped
    charset = "utf-8" if page_file.type.startswith("text/") else None
    return web.Response(body=body, headers=headers, content_type=page_file.type, charset=charset)
