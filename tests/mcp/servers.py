"""A server that uses the official SDK, over stdio or streamable HTTP.

    python -m tests.mcp.servers                     over stdio
    python -m tests.mcp.servers --http              over HTTP; prints its port
    python -m tests.mcp.servers --http --key KEY    only with `Bearer KEY`
    python -m tests.mcp.servers --http --oauth      only after OAuth

Started with --http it lives until its standard input ends.
"""

import argparse
import asyncio
import secrets
import socket
import sys
import time
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl, BaseModel

from tests.mcp.tiny_server import build_png


class Tide(BaseModel):
    height: float
    rising: bool


def add_tools(server: MCPServer) -> None:
    """Add the tools to a server."""

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    def tide() -> Tide:
        """The tide, as structured content."""
        return Tide(height=1.5, rising=True)

    @server.tool()
    def picture() -> Image:
        """A picture of the beach."""
        return Image(data=build_png(), format="png")

    @server.tool()
    def fail() -> str:
        """Always fails."""
        raise ToolError("no shells left")

    @server.tool()
    async def walk(steps: int, context: Context[Any, Any]) -> str:
        """Takes its time, and says how far it is."""
        for step in range(steps):
            await context.report_progress(step, steps, "walking")
            await asyncio.sleep(0.1)
        return f"walked {steps} steps"

    @server.tool()
    async def wait(path: str) -> str:
        """Waits for ever; if it is cancelled, it says so in a file."""
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            with open(path, "w") as file:  # noqa: ASYNC230, PTH123
                file.write("cancelled")
            raise
        return "never"

    @server.tool()
    async def grow(context: Context[Any, Any]) -> str:
        """Has one more tool afterwards."""

        def extra() -> str:
            return "extra"

        server.add_tool(extra)
        await context.notify_tools_changed()
        return "grown"


class OAuthProvider:
    """Authorizes every client that asks."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        code = secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        token = secrets.token_hex(16)
        self.tokens[token] = AccessToken(
            token=token,
            client_id=client.client_id,
            scopes=authorization_code.scopes,
            resource=authorization_code.resource,
        )
        return OAuthToken(access_token=token, token_type="Bearer")

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return None

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        raise NotImplementedError

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.tokens.pop(token.token, None)

    async def exchange_identity_assertion(self, *args: Any) -> Any:
        raise NotImplementedError


def require_key(app: Any, key: str) -> Any:
    """Wrap an app so that it requires an Authorization header."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or [])
        if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {key}".encode():
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return guarded


async def serve_http(options: argparse.Namespace) -> None:
    listening = socket.create_server(("127.0.0.1", options.port))
    port = listening.getsockname()[1]
    settings: dict[str, Any] = {}
    if options.oauth:
        origin = AnyHttpUrl(f"http://127.0.0.1:{port}")
        settings = {
            "auth_server_provider": OAuthProvider(),
            "auth": AuthSettings(
                issuer_url=origin,
                resource_server_url=AnyHttpUrl(f"http://127.0.0.1:{port}/mcp"),
                validate_token_resource=True,
                client_registration_options=ClientRegistrationOptions(enabled=True),
            ),
        }
    server = MCPServer("beach", **settings)
    add_tools(server)
    app: Any = server.streamable_http_app(stateless_http=options.stateless)
    if options.key:
        app = require_key(app, options.key)
    serving = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()

    def leave() -> None:
        serving.should_exit = serving.force_exit = True

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    watching = asyncio.ensure_future(reader.read())
    watching.add_done_callback(lambda _: leave())
    await serving.serve(sockets=[listening])
    watching.cancel()


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--http", "--oauth", "--stateless"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--key", default="")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.http:
        asyncio.run(serve_http(options))
    else:
        server = MCPServer("beach")
        add_tools(server)
        server.run()


if __name__ == "__main__":
    main()
