"""Routes of machines, and of the keys by which they open sessions."""

from aiohttp import web

from . import access_keys, machines, shapes
from .accounts import Device, within_quota
from .core import Core
from .errors import invalid
from .mailroom import answer
from .routing import OpenRoute, Route


class MachineRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route | OpenRoute]:
        access = "/v1/access-keys/{session}/{machine}"
        return [
            Route("POST", "/v1/machines", self.register),
            Route("GET", "/v1/machines", self.all),
            Route("GET", "/v1/machines/{id}", self.one),
            Route("DELETE", "/v1/machines/{id}", self.delete),
            Route("GET", access, self.access_key),
            Route("POST", access, self.create_access_key),
            Route("PUT", access, self.change_access_key),
        ]

    async def register(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.NewMachine) as new:
            if len(new.metadata) + len(new.daemon_state or b"") > self._core.limits.metadata:
                raise invalid("body/metadata", f"has at most {self._core.limits.metadata} bytes")
            machine, update = await self._core.database.write(
                within_quota,
                self._core.limits,
                machines.register,
                caller.account,
                new.id,
                new.metadata,
                new.daemon_state or None,
                new.data_encryption_key,
                self._core.limits.account_machines,
            )
        self._core.presence.welcome("machines", caller.account, new.id)
        if update:
            told = {name: value for name, value in machine.items() if name != "id"}
            body = {"t": "new-machine", "machineId": new.id, **told}
            self._core.hub.update(caller.account, update, body)
            metadata = {"value": machine["metadata"], "version": machine["metadataVersion"]}
            body = {"t": "update-machine", "machineId": new.id, "metadata": metadata}
            self._core.hub.update(caller.account, update + 1, body, machine=new.id, devices=False)
        return answer({"machine": machine})

    async def all(self, request: web.Request, caller: Device) -> web.Response:
        return answer(await self._core.database.read(machines.all_of, caller.account))

    async def one(self, request: web.Request, caller: Device) -> web.Response:
        machine = request.match_info["id"]
        found = await self._core.database.read(machines.one, caller.account, machine)
        return answer({"machine": found})

    async def delete(self, request: web.Request, caller: Device) -> web.Response:
        machine = request.match_info["id"]
        update = await self._core.database.write(machines.delete, caller.account, machine)
        self._core.presence.forget("machines", caller.account, machine)
        body = {"t": "delete-machine", "machineId": machine}
        self._core.hub.update(caller.account, update, body)
        return answer({"success": True})

    async def access_key(self, request: web.Request, caller: Device) -> web.Response:
        found = await self._core.database.read(access_keys.get, caller.account, *pair(request))
        return answer({"accessKey": found})

    async def create_access_key(self, request: web.Request, caller: Device) -> web.Response:
        session, machine = pair(request)
        async with self._core.mailroom.parsed(request, shapes.NewAccessKey) as new:
            made = await self._core.database.write(
                within_quota,
                self._core.limits,
                access_keys.create,
                caller.account,
                session,
                machine,
                new.data,
            )
        return answer({"success": True, "accessKey": made})

    async def change_access_key(self, request: web.Request, caller: Device) -> web.Response:
        session, machine = pair(request)
        async with self._core.mailroom.parsed(request, shapes.AccessKeyChange) as wanted:
            is_done, now = await self._core.database.write(
                within_quota,
                self._core.limits,
                access_keys.change,
                caller.account,
                session,
                machine,
                wanted.data,
                wanted.expected_version,
            )
        if is_done:
            return answer({"success": True, "version": now.version})
        return answer(
            {
                "success": False,
                "error": "version-mismatch",
                "currentVersion": now.version,
                "currentData": now.value,
            }
        )


def pair(request: web.Request) -> tuple[str, str]:
    return request.match_info["session"], request.match_info["machine"]
