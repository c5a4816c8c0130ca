"""Routes for files. Bytes use the same authenticated routes as everything else. File names are not
stored."""

import asyncio

from aiohttp import web

from . import attachments, request_types
from .accounts import AccountDevice
from .context import RelayContext
from .errors import RelayError, build_invalid_error, build_not_found_error
from .request_bodies import build_json_response
from .routing import AuthenticatedRoute, PublicRoute

CHUNK = 256 * 1024
BYTES_TYPE = "application/octet-stream"


class AttachmentRoutes:
    def __init__(self, context: RelayContext) -> None:
        self._context = context

    def routes(self) -> list[AuthenticatedRoute | PublicRoute]:
        base = "/v1/sessions/{id}/attachments"
        return [
            AuthenticatedRoute("POST", f"{base}/request-upload", self.request_upload),
            AuthenticatedRoute("POST", f"{base}/request-download", self.request_download),
            AuthenticatedRoute("PUT", f"{base}/{{name}}", self.upload),
            AuthenticatedRoute("GET", f"{base}/{{name}}", self.download),
        ]

    async def request_upload(self, request: web.Request, caller: AccountDevice) -> web.Response:
        session, limits = request.match_info["id"], self._context.limits
        async with self._context.body_reader.read_body(
            request, request_types.UploadRequest
        ) as upload:
            size = upload.size
        if size > limits.attachment:
            raise build_invalid_error("body/size", f"must be at most {limits.attachment}")
        self._context.authenticator.check_rate(caller.account, "upload", limits.uploads_a_minute)
        name = await self._context.database.write(
            attachments.reserve_attachment,
            caller.account,
            session,
            size,
            quota=limits.account_files,
        )
        reply = {
            "ref": f"{build_ref_prefix(session)}{name}",
            "uploadUrl": self._url(request, session, name),
            "method": "PUT",
        }
        return build_json_response(reply)

    async def request_download(self, request: web.Request, caller: AccountDevice) -> web.Response:
        session = request.match_info["id"]
        async with self._context.body_reader.read_body(
            request, request_types.DownloadRequest
        ) as download:
            ref = download.ref
        if not ref.startswith(build_ref_prefix(session)):
            raise build_invalid_error("body/ref", "must be a ref of this session")
        name = ref.removeprefix(build_ref_prefix(session))
        await self._require_uploaded(caller, session, name)
        return build_json_response({"downloadUrl": self._url(request, session, name)})

    async def upload(self, request: web.Request, caller: AccountDevice) -> web.Response:
        session, name = request.match_info["id"], request.match_info["name"]
        attachment = await self._context.database.read(
            attachments.find_attachment, caller.account, session, name
        )
        if attachment.is_kept:
            raise RelayError(409, "this file was sent before; ask for a new ref")
        if request.content_length is not None and request.content_length > attachment.size:
            raise build_size_error(attachment.size)
        with self._context.blobs.create_draft(name) as draft:
            async for piece in request.content.iter_chunked(CHUNK):
                if draft.size + len(piece) > attachment.size:
                    raise build_size_error(attachment.size)
                await asyncio.to_thread(draft.write, piece)
            if draft.size != attachment.size:
                raise RelayError(
                    400,
                    f"{attachment.size} bytes were announced and {draft.size} came; send it again",
                )
            await asyncio.to_thread(draft.commit)
        if not await self._context.database.write(attachments.mark_kept, name):
            await self._context.remove_blobs([name])
            raise build_not_found_error("Attachment")
        return build_json_response({"success": True})

    async def download(self, request: web.Request, caller: AccountDevice) -> web.StreamResponse:
        session, name = request.match_info["id"], request.match_info["name"]
        await self._require_uploaded(caller, session, name)
        headers = {
            "Content-Type": BYTES_TYPE,
            "Cache-Control": "private, immutable, max-age=31536000",
        }
        return web.FileResponse(self._context.blobs.path(name), headers=headers)

    async def _require_uploaded(self, caller: AccountDevice, session: str, name: str) -> None:
        attachment = await self._context.database.read(
            attachments.find_attachment, caller.account, session, name
        )
        if not attachment.is_kept:
            raise build_not_found_error("Attachment")

    def _url(self, request: web.Request, session: str, name: str) -> str:
        base = self._context.config.public_url.rstrip("/") or str(request.url.origin())
        return f"{base}/v1/sessions/{session}/attachments/{name}"


def build_ref_prefix(session: str) -> str:
    return f"sessions/{session}/attachments/"


def build_size_error(size: int) -> RelayError:
    return RelayError(413, f"{size} bytes were announced; ask for a new ref to send more")
