"""Routes of files. Bytes go in and out by the same authenticated routes as everything else; what a
file is called arrives here and is not kept."""

import asyncio

from aiohttp import web

from . import attachments, shapes
from .accounts import Device
from .core import Core
from .errors import RelayError, invalid, not_found
from .mailroom import answer
from .routing import OpenRoute, Route

PIECE = 256 * 1024
BYTES = "application/octet-stream"


class AttachmentRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route | OpenRoute]:
        base = "/v1/sessions/{id}/attachments"
        return [
            Route("POST", f"{base}/request-upload", self.request_upload),
            Route("POST", f"{base}/request-download", self.request_download),
            Route("PUT", f"{base}/{{name}}", self.upload),
            Route("GET", f"{base}/{{name}}", self.download),
        ]

    async def request_upload(self, request: web.Request, caller: Device) -> web.Response:
        session, limits = request.match_info["id"], self._core.limits
        async with self._core.mailroom.parsed(request, shapes.UploadRequest) as wanted:
            size = wanted.size
        if size > limits.attachment:
            raise invalid("body/size", f"must be at most {limits.attachment}")
        self._core.doorman.knock(caller.account, "upload", limits.uploads_a_minute)
        name = await self._core.database.write(
            attachments.reserve, caller.account, session, size, quota=limits.account_files
        )
        told = {
            "ref": f"{prefix(session)}{name}",
            "uploadUrl": self._url(request, session, name),
            "method": "PUT",
        }
        return answer(told)

    async def request_download(self, request: web.Request, caller: Device) -> web.Response:
        session = request.match_info["id"]
        async with self._core.mailroom.parsed(request, shapes.DownloadRequest) as wanted:
            ref = wanted.ref
        if not ref.startswith(prefix(session)):
            raise invalid("body/ref", "must be a ref of this session")
        name = ref.removeprefix(prefix(session))
        await self._kept(caller, session, name)
        return answer({"downloadUrl": self._url(request, session, name)})

    async def upload(self, request: web.Request, caller: Device) -> web.Response:
        session, name = request.match_info["id"], request.match_info["name"]
        found = await self._core.database.read(attachments.find, caller.account, session, name)
        if found.is_kept:
            raise RelayError(409, "this file was sent before; ask for a new ref")
        if request.content_length is not None and request.content_length > found.size:
            raise larger_than_said(found.size)
        with self._core.blobs.draft(name) as draft:
            async for piece in request.content.iter_chunked(PIECE):
                if draft.size + len(piece) > found.size:
                    raise larger_than_said(found.size)
                await asyncio.to_thread(draft.write, piece)
            if draft.size != found.size:
                raise RelayError(
                    400, f"{found.size} bytes were announced and {draft.size} came; send it again"
                )
            await asyncio.to_thread(draft.keep)
        if not await self._core.database.write(attachments.keep, name):
            await self._core.remove_blobs([name])
            raise not_found("Attachment")
        return answer({"success": True})

    async def download(self, request: web.Request, caller: Device) -> web.StreamResponse:
        session, name = request.match_info["id"], request.match_info["name"]
        await self._kept(caller, session, name)
        headers = {"Content-Type": BYTES, "Cache-Control": "private, immutable, max-age=31536000"}
        return web.FileResponse(self._core.blobs.path(name), headers=headers)

    async def _kept(self, caller: Device, session: str, name: str) -> None:
        found = await self._core.database.read(attachments.find, caller.account, session, name)
        if not found.is_kept:
            raise not_found("Attachment")

    def _url(self, request: web.Request, session: str, name: str) -> str:
        base = self._core.config.public_url.rstrip("/") or str(request.url.origin())
        return f"{base}/v1/sessions/{session}/attachments/{name}"


def prefix(session: str) -> str:
    return f"sessions/{session}/attachments/"


def larger_than_said(size: int) -> RelayError:
    return RelayError(413, f"{size} bytes were announced; ask for a new ref to send more")
