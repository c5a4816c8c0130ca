"""Asks the gateway of this machine for a fresh session, through the relay, as a device does. It
needs a running gateway and an available relay."""

import asyncio
from typing import Any

from crabtalk_web.sealing import DataSealer

from .credentials import RelayCredentials
from .errors import WebGatewayError
from .relay_connection import SPAWN_METHOD
from .relay_socket import RelaySocket

RENEWAL_TIMEOUT = 30.0


async def request_renewal(credentials: RelayCredentials, agent: str) -> str:
    """Return the id of the new session of the conversation with `agent`. Raises WebGatewayError,
    RelayUnavailableError and RelayRefusedError."""
    sealer = DataSealer(credentials.machine_key)
    params = sealer.seal({"agent": agent, "fresh": True})
    request = {"method": f"{credentials.machine_id}:{SPAWN_METHOD}", "params": params}
    async with RelaySocket(
        credentials.relay, credentials.token, ignore_event, refuse_call
    ) as socket:
        listening = asyncio.ensure_future(socket.listen())
        try:
            answer = await socket.request("rpc-call", request, within=RENEWAL_TIMEOUT)
        finally:
            listening.cancel()
            await asyncio.wait([listening])
    reply = answer if isinstance(answer, dict) else {}
    result = sealer.open(str(reply.get("result", "")))
    if not reply.get("ok") or not isinstance(result, dict):
        reason = reply.get("error") or "its answer cannot be opened"
        raise WebGatewayError(f"no gateway answers: {reason}; see that `crabtalk-web gateway` runs")
    if result.get("type") != "success":
        raise WebGatewayError(str(result.get("errorMessage") or "the gateway refused"))
    return str(result.get("sessionId", ""))


def ignore_event(name: str, payload: Any) -> None:
    """Events are not needed here."""


async def refuse_call(method: str, params: str) -> None:
    """Never called, because no method is registered."""
