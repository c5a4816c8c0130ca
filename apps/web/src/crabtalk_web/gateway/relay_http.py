"""HTTP client of a relay: the few routes that a gateway needs, on any relay.

All values it sends are sealed already. Answers are checked only as far as they are used: a relay is
trusted with storage and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp

from .errors import RelayRefusedError, RelayUnavailableError

TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10)
MAX_MESSAGES = 100
LAST_SEQ = 2**31 - 1
CLIENT_NAME = "crabtalk-web"
# The largest sealed file that is downloaded. Relays do not store larger ones.
MAX_FILE_BYTES = 10 * 1024 * 1024


class RelayHttp:
    """As a context manager: a small connection pool to one relay.

    Every request raises RelayUnavailableError and RelayRefusedError. After cancellation it may have
    happened.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url.rstrip("/")
        self.token = token

    async def __aenter__(self) -> "RelayHttp":
        self._http = aiohttp.ClientSession(timeout=TIMEOUT, headers={"X-Happy-Client": CLIENT_NAME})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    # ── Sessions and machines ───────────────────────────────────────────────────────────────

    async def open_session(self, tag: str, metadata: str, data_key: str) -> dict[str, Any]:
        """Return the session with this tag, created if there is none. It has an `id`."""
        body = {"tag": tag, "metadata": metadata, "dataEncryptionKey": data_key}
        result = require_object(
            require_object(await self.post("/v1/sessions", body)).get("session")
        )
        if not isinstance(result.get("id"), str) or not result["id"]:
            raise RelayUnavailableError("the relay gave a session without an id")
        return result

    async def register_machine(
        self, machine: str, metadata: str, state: str, data_key: str
    ) -> None:
        body = {
            "id": machine,
            "metadata": metadata,
            "daemonState": state,
            "dataEncryptionKey": data_key,
        }
        await self.post("/v1/machines", body)

    async def push_notice(self, session: str, kind: str, title: str, body: str) -> None:
        reply = {"kind": kind, "title": title, "body": body, "data": {"sessionId": session}}
        await self.post(f"/v1/sessions/{quote(session)}/push-event", reply)

    # ── Messages ────────────────────────────────────────────────────────────────────────────

    async def append_messages(self, session: str, messages: Sequence[Mapping[str, str]]) -> None:
        """Append at most 100 messages; the relay must confirm all of them. It stores a message with
        a known local id only once."""
        path = f"/v3/sessions/{quote(session)}/messages"
        stored = require_object(await self.post(path, {"messages": list(messages)})).get("messages")
        rows = [row for row in stored if isinstance(row, dict)] if isinstance(stored, list) else []
        if not {message["localId"] for message in messages} <= {row.get("localId") for row in rows}:
            raise RelayUnavailableError("the relay does not say that it has what it was sent")

    async def fetch_after(self, session: str, seq: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the next messages, and whether there are more."""
        path = f"/v3/sessions/{quote(session)}/messages?after_seq={seq}&limit={MAX_MESSAGES}"
        page = require_object(await self._request("GET", path))
        messages = page.get("messages")
        if not isinstance(messages, list):
            raise RelayUnavailableError(
                "the relay answered with something that is no page of messages"
            )
        return messages, bool(page.get("hasMore"))

    async def fetch_latest(self, session: str) -> list[dict[str, Any]]:
        """Return the last messages, the newest first."""
        return await self.fetch_before(session, LAST_SEQ)

    async def fetch_before(self, session: str, seq: int) -> list[dict[str, Any]]:
        """Return the messages before `seq`, the newest first."""
        path = f"/v3/sessions/{quote(session)}/messages?before_seq={seq}&limit={MAX_MESSAGES}"
        messages = require_object(await self._request("GET", path)).get("messages")
        return (
            [message for message in messages if isinstance(message, dict)]
            if isinstance(messages, list)
            else []
        )

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def upload(self, session: str, data: bytes) -> str:
        """Upload sealed bytes and return their ref. The file name is not sent."""
        path = f"/v1/sessions/{quote(session)}/attachments/request-upload"
        reply = require_object(await self.post(path, {"filename": "file.enc", "size": len(data)}))
        ref, url = str(reply.get("ref", "")), str(reply.get("uploadUrl", ""))
        if reply.get("method", "PUT") == "POST":
            form = aiohttp.FormData(
                {
                    str(key): str(value)
                    for key, value in require_object(reply.get("formFields")).items()
                }
            )
            form.add_field("file", data, content_type="application/octet-stream")
            await self._transfer("POST", url, data=form)
        else:
            await self._transfer("PUT", url, data=data)
        return ref

    async def download(self, session: str, ref: str) -> bytes:
        path = f"/v1/sessions/{quote(session)}/attachments/request-download"
        reply = require_object(await self.post(path, {"ref": ref}))
        return await self._transfer("GET", str(reply.get("downloadUrl", "")))

    # ── Whatever there is ───────────────────────────────────────────────────────────────────

    async def get(self, path: str) -> Any:
        return await self._request("GET", path)

    async def post(self, path: str, body: Any) -> Any:
        return await self._request("POST", path, json=body)

    async def delete(self, path: str) -> Any:
        return await self._request("DELETE", path)

    async def _request(self, method: str, path: str, **request_options: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with self._http.request(
                method, self.url + path, headers=headers, **request_options
            ) as response:
                if response.status >= 400:
                    raise RelayRefusedError(response.status, await read_error_reason(response))
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise build_unavailable_error(self.url, error) from None

    async def _transfer(self, method: str, url: str, data: Any = None) -> bytes:
        """Transfer bytes, and send the token only to the relay itself."""
        is_own_relay = url.startswith(f"{self.url}/")
        headers = {"Authorization": f"Bearer {self.token}"} if is_own_relay else {}
        if method == "PUT":
            headers["Content-Type"] = "application/octet-stream"
        try:
            async with self._http.request(method, url, headers=headers, data=data) as response:
                if response.status >= 400:
                    raise RelayRefusedError(response.status, await read_error_reason(response))
                result = bytearray()
                async for piece in response.content.iter_chunked(65_536):
                    result += piece
                    if len(result) > MAX_FILE_BYTES:
                        raise RelayRefusedError(413, "the file is larger than any may be")
                return bytes(result)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise build_unavailable_error(self.url, error) from None


def build_unavailable_error(url: str, error: Exception) -> RelayUnavailableError:
    return RelayUnavailableError(
        f"the relay at {url} does not answer: {str(error) or type(error).__name__}"
    )


async def read_error_reason(response: aiohttp.ClientResponse) -> str:
    try:
        reply = require_object(await response.json(content_type=None))
    except (TimeoutError, ValueError, aiohttp.ClientError):
        reply = {}
    return str(reply.get("message") or reply.get("error") or response.reason)[:300]


def require_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RelayUnavailableError("the relay answered with something that is no JSON object")
    return value
