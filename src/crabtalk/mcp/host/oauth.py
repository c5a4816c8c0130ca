"""OAuth in the host: stores tokens in a file, and receives the browser's redirect on a local port.

The SDK implements the protocol. It calls this module only when the server requires authorization
and there is no valid token.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, ValidationError

from crabtalk.transport import replace_file

# Seconds for a person to read, log in and agree.
AUTHORIZATION_TIMEOUT = 300.0
LONGEST_REQUEST = 16 * 1024
PAGE_TEMPLATE = "<!doctype html><title>crabtalk</title><p>{}</p>"


class TokenFile:
    """The SDK's token storage: tokens and the registered client in a file with mode 0600."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def get_tokens(self) -> OAuthToken | None:
        try:
            return OAuthToken.model_validate(self._read().get("tokens"))
        except ValidationError:
            return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._update(tokens=tokens.model_dump(mode="json", exclude_none=True))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        try:
            return OAuthClientInformationFull.model_validate(self._read().get("client"))
        except ValidationError:
            return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._update(client=client_info.model_dump(mode="json", exclude_none=True))

    @property
    def port(self) -> int:
        """The port in the registered client's redirect URI; 0 if there is no client."""
        client = self._read().get("client")
        uris = client.get("redirect_uris") if isinstance(client, dict) else None
        try:
            return urlsplit(uris[0]).port or 0 if isinstance(uris, list) and uris else 0
        except (ValueError, TypeError):
            return 0

    def forget_client(self) -> None:
        document = self._read()
        if document.pop("client", None) is not None:
            self._write(document)

    def _read(self) -> dict[str, Any]:
        try:
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def _update(self, **values: Any) -> None:
        self._write({**self._read(), **values})

    def _write(self, document: dict[str, Any]) -> None:

        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(document).encode(), 0o600)


class OAuthFlow:
    """The authorization of one server.

    As a context manager it reserves the port for the browser's redirect. It listens there only
    while a person is asked.
    """

    def __init__(self, url: str, tokens: Path, on_authorization: Callable[[str], None]) -> None:
        self._url = url
        self._file = TokenFile(tokens)
        self._on_authorization = on_authorization
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._answer: asyncio.Future[AuthorizationCodeResult] | None = None
        self._server: asyncio.Server | None = None
        self._state = ""

    def __enter__(self) -> "OAuthFlow":
        try:
            self._socket.bind(("127.0.0.1", self._file.port))
        except OSError:
            # Another process has the port the client was registered with: register it again.
            self._file.forget_client()
            self._socket.bind(("127.0.0.1", 0))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop_listening()
        self._socket.close()

    def create_provider(self) -> OAuthClientProvider:
        port = self._socket.getsockname()[1]
        return OAuthClientProvider(
            self._url,
            OAuthClientMetadata(
                client_name="crabtalk", redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}/callback")]
            ),
            self._file,
            redirect_handler=self._open_authorization_page,
            callback_handler=self._wait_for_callback,
        )

    async def _open_authorization_page(self, address: str) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        self._state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        self._stop_listening()
        # Listen before the person gets the URL: browsers are quick.
        self._server = await asyncio.start_server(
            self._serve_callback, sock=self._socket.dup(), limit=LONGEST_REQUEST
        )
        self._on_authorization(address)

    async def _wait_for_callback(self) -> AuthorizationCodeResult:
        assert self._answer is not None  # noqa: S101 - the SDK opens the page first
        try:
            async with asyncio.timeout(AUTHORIZATION_TIMEOUT):
                return await self._answer
        except TimeoutError:
            raise OAuthFlowError(f"it was not allowed within {AUTHORIZATION_TIMEOUT:g} s") from None
        finally:
            self._stop_listening()

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve_callback(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one request of a browser. Only redirects with our `state` are accepted, because any
        web page can send a browser here."""
        try:
            async with asyncio.timeout(10):
                line = (await reader.readline()).decode(errors="replace").split(" ")
            target = urlsplit(line[1] if len(line) > 1 else "")
            parameters = {key: values[0] for key, values in parse_qs(target.query).items()}
            is_ours = target.path == "/callback" and parameters.get("state", "") == self._state
            if not is_ours or not parameters.keys() & {"code", "error"}:
                status, text = "404 Not Found", "There is nothing here."
            elif "code" in parameters:
                self._accept_code(parameters)
                status, text = "200 OK", "Done. You can close this page."
            else:
                self._reject_authorization(parameters["error"])
                status, text = "200 OK", "It was not allowed. You can close this page."
            body = PAGE_TEMPLATE.format(text).encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass  # not a request of our browser
        finally:
            writer.close()

    def _accept_code(self, parameters: dict[str, str]) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(
                AuthorizationCodeResult(
                    code=parameters["code"],
                    state=parameters.get("state"),
                    iss=parameters.get("iss"),
                )
            )

    def _reject_authorization(self, error: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(OAuthFlowError(f"it was not allowed: {error[:200]}"))
