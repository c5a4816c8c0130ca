"""Routes for machines and their access keys."""

from aiohttp import web

from . import access_keys, machines, request_types
from .accounts import AccountDevice, run_within_quota
from .context import RelayContext
from .errors import build_invalid_error
from .request_bodies import build_json_response
from .routing import AuthenticatedRoute, PublicRoute


class MachineRoutes:
    def __init__(self, context: RelayContext) -> None:
        self._context = context

    def routes(self) -> list[AuthenticatedRoute | PublicRoute]:
        access = "/v1/access-keys/{session}/{machine}"
        return [
            AuthenticatedRoute("POST", "/v1/machines", self.register),
            AuthenticatedRoute("GET", "/v1/machines", self.list_machines),
            AuthenticatedRoute("GET", "/v1/machines/{id}", self.get_machine),
            AuthenticatedRoute("DELETE", "/v1/machines/{id}", self.delete),
            AuthenticatedRoute("GET", access, self.get_access_key),
            AuthenticatedRoute("POST", access, self.create_access_key),
            AuthenticatedRoute("PUT", access, self.change_access_key),
        ]

    async def register(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(request, request_types.NewMachine) as new:
            if len(new.metadata) + len(new.daemon_state or b"") > self._context.limits.metadata:
                raise build_invalid_error(
                    "body/metadata", f"has at most {self._context.limits.metadata} bytes"
                )
            machine, update = await self._context.database.write(
                run_within_quota,
                self._context.limits,
                machines.register_machine,
                caller.account,
                new.id,
                new.metadata,
                new.daemon_state or None,
                new.data_encryption_key,
                self._context.limits.account_machines,
            )
        self._context.presence.mark_begun("machines", caller.account, new.id)
        if update:
            announced = {name: value for name, value in machine.items() if name != "id"}
            body = {"t": "new-machine", "machineId": new.id, **announced}
            self._context.hub.send_update(caller.account, update, body)
            metadata = {"value": machine["metadata"], "version": machine["metadataVersion"]}
            body = {"t": "update-machine", "machineId": new.id, "metadata": metadata}
            self._context.hub.send_update(
                caller.account, update + 1, body, machine=new.id, devices=False
            )
        return build_json_response({"machine": machine})

    async def list_machines(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return build_json_response(
            await self._context.database.read(machines.list_machines, caller.account)
        )

    async def get_machine(self, request: web.Request, caller: AccountDevice) -> web.Response:
        machine_id = request.match_info["id"]
        machine = await self._context.database.read(
            machines.get_machine, caller.account, machine_id
        )
        return build_json_response({"machine": machine})

    async def delete(self, request: web.Request, caller: AccountDevice) -> web.Response:
        machine = request.match_info["id"]
        update = await self._context.database.write(
            machines.delete_machine, caller.account, machine
        )
        self._context.presence.forget("machines", caller.account, machine)
        body = {"t": "delete-machine", "machineId": machine}
        self._context.hub.send_update(caller.account, update, body)
        return build_json_response({"success": True})

    async def get_access_key(self, request: web.Request, caller: AccountDevice) -> web.Response:
        access_key = await self._context.database.read(
            access_keys.get_access_key, caller.account, *read_path_ids(request)
        )
        return build_json_response({"accessKey": access_key})

    async def create_access_key(self, request: web.Request, caller: AccountDevice) -> web.Response:
        session, machine = read_path_ids(request)
        async with self._context.body_reader.read_body(request, request_types.NewAccessKey) as new:
            access_key = await self._context.database.write(
                run_within_quota,
                self._context.limits,
                access_keys.create_access_key,
                caller.account,
                session,
                machine,
                new.data,
            )
        return build_json_response({"success": True, "accessKey": access_key})

    async def change_access_key(self, request: web.Request, caller: AccountDevice) -> web.Response:
        session, machine = read_path_ids(request)
        async with self._context.body_reader.read_body(
            request, request_types.AccessKeyChange
        ) as change:
            is_done, now = await self._context.database.write(
                run_within_quota,
                self._context.limits,
                access_keys.change_access_key,
                caller.account,
                session,
                machine,
                change.data,
                change.expected_version,
            )
        if is_done:
            return build_json_response({"success": True, "version": now.version})
        return build_json_response(
            {
                "success": False,
                "error": "version-mismatch",
                "currentVersion": now.version,
                "currentData": now.value,
            }
        )


def read_path_ids(request: web.Request) -> tuple[str, str]:
    return request.match_info["session"], request.match_info["machine"]
