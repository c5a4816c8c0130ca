"""The page: files of one folder, under a policy that lets them talk to this relay and nobody else.

A path that is no file and asks for a document gets the page itself, which knows its own paths.
"""

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
}


class Page:
    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()

    async def get(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if self._folder is None:
            if path:
                raise not_found("Route")
            return web.Response(text=BANNER, headers=HEADERS)
        return web.FileResponse(self._file(self._folder, path), headers=HEADERS)

    def _file(self, folder: Path, path: str) -> Path:
        index = folder / "index.html"
        if not path:
            return index
        if "\0" in path or path.startswith(("v1/", "v2/", "v3/")):
            raise not_found("Route")
        found = (folder / path).resolve()
        if found.is_relative_to(folder) and found.is_file():
            return found
        if "." in path.rpartition("/")[2]:
            raise not_found("File")
        return index
