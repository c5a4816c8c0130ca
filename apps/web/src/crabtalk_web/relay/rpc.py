"""RPC: a device calls a method that a gateway has registered. The relay forwards sealed texts.

A method is called `<session or machine>:<name>`. A call to an absent target fails at once, unless
the target has just disconnected or connected: reconnecting takes a moment.
"""

import asyncio
from typing import Any

from .client_socket import ClientSocket, SocketGoneError
from .limits import RelayLimits
from .socket_hub import SocketHub


class RpcRouter:
    def __init__(self, hub: SocketHub, limits: RelayLimits) -> None:
        self._hub = hub
        self._limits = limits

    async def call(self, caller: ClientSocket, method: str, params: str) -> dict[str, Any]:
        """Return the answer for the caller. After cancellation the call may have happened."""
        if len(params) > self._limits.rpc:
            return build_rpc_error(
                f"the parameters of a call have at most {self._limits.rpc} bytes"
            )
        target = await self._find_target(caller, method)
        if target is None:
            return build_rpc_error("RPC method not available")
        if target is caller:
            return build_rpc_error("Cannot call RPC on the same socket")
        request = {"method": method, "params": params}
        try:
            result = await target.request("rpc-request", request, self._limits.rpc_timeout)
        except TimeoutError:
            return build_rpc_error(f"no answer in {self._limits.rpc_timeout:g} s; try again")
        except SocketGoneError:
            return build_rpc_error("the other side left before it answered; try again")
        if isinstance(result, str) and len(result) > self._limits.rpc:
            return build_rpc_error(
                f"the answer has {len(result)} bytes and may have {self._limits.rpc};"
                " ask for less at once"
            )
        return {"ok": True, "result": result}

    async def _find_target(self, caller: ClientSocket, method: str) -> ClientSocket | None:
        account_sockets = self._hub.get_account(caller.account)
        changed_at = account_sockets.changed_at.get(method.partition(":")[0])
        while not (sockets := account_sockets.methods.get(method)):
            if changed_at is None:
                return None
            try:
                async with asyncio.timeout_at(changed_at + self._limits.rpc_absent):
                    await account_sockets.method_registered.wait()
            except TimeoutError:
                return None
        others = [socket for socket in sockets if socket is not caller]
        return others[-1] if others else caller


def build_rpc_error(reason: str) -> dict[str, Any]:
    return {"ok": False, "error": reason}
