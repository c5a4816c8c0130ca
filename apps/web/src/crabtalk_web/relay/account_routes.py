"""Routes of an account's own things: settings, profile, pairs, artifacts, push tokens."""

from aiohttp import web
from msgspec import UNSET

from . import accounts, artifact_updates, artifacts, pairs, shapes
from .accounts import Device, within_quota
from .core import Core
from .errors import RelayError, invalid
from .ids import now_ms
from .mailroom import answer, number
from .pairs import Change
from .routing import OpenRoute, Route

PUSH_TOKENS = 100


class AccountRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route | OpenRoute]:
        return [
            Route("GET", "/v1/account/profile", self.profile),
            Route("GET", "/v1/account/settings", self.settings),
            Route("POST", "/v1/account/settings", self.set_settings),
            Route("GET", "/v1/push-tokens", self.push_tokens),
            Route("POST", "/v1/push-tokens", self.add_push_token),
            Route("DELETE", "/v1/push-tokens/{token}", self.delete_push_token),
            Route("GET", "/v1/kv", self.list_pairs),
            Route("POST", "/v1/kv", self.change_pairs),
            Route("POST", "/v1/kv/bulk", self.get_pairs),
            Route("GET", "/v1/kv/{key}", self.get_pair),
            Route("GET", "/v1/artifacts", self.artifacts),
            Route("POST", "/v1/artifacts", self.create_artifact),
            Route("GET", "/v1/artifacts/{id}", self.artifact),
            Route("POST", "/v1/artifacts/{id}", self.change_artifact),
            Route("DELETE", "/v1/artifacts/{id}", self.delete_artifact),
        ]

    async def profile(self, request: web.Request, caller: Device) -> web.Response:
        """Nobody has a name here."""
        return answer(
            {
                "id": caller.account,
                "timestamp": now_ms(),
                "firstName": None,
                "lastName": None,
                "username": None,
                "avatar": None,
                "github": None,
                "connectedServices": [],
            }
        )

    async def settings(self, request: web.Request, caller: Device) -> web.Response:
        value, version = await self._core.database.read(accounts.settings, caller.account)
        return answer({"settings": value, "settingsVersion": version})

    async def set_settings(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.Settings) as wanted:
            is_done, value, version, update = await self._core.database.write(
                within_quota,
                self._core.limits,
                accounts.set_settings,
                caller.account,
                wanted.settings,
                wanted.expected_version,
            )
        if not is_done:
            return answer(
                {
                    "success": False,
                    "error": "version-mismatch",
                    "currentVersion": version,
                    "currentSettings": value,
                }
            )
        body = {
            "t": "update-account",
            "id": caller.account,
            "settings": {"value": value, "version": version},
        }
        self._core.hub.update(caller.account, update, body)
        return answer({"success": True, "version": version})

    # ── Push tokens ─────────────────────────────────────────────────────────────────────────

    async def push_tokens(self, request: web.Request, caller: Device) -> web.Response:
        found = await self._core.database.read(accounts.push_tokens, caller.account)
        return answer({"tokens": found})

    async def add_push_token(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.PushToken) as new:
            await self._core.database.write(
                accounts.add_push_token, caller.account, new.token, PUSH_TOKENS
            )
        return answer({"success": True})

    async def delete_push_token(self, request: web.Request, caller: Device) -> web.Response:
        token = request.match_info["token"]
        await self._core.database.write(accounts.delete_push_token, caller.account, token)
        return answer({"success": True})

    # ── Pairs ───────────────────────────────────────────────────────────────────────────────

    async def list_pairs(self, request: web.Request, caller: Device) -> web.Response:
        limit = number(request, "limit", 1, self._core.limits.kv_list, 100)
        prefix = request.query.get("prefix", "")
        found = await self._core.database.read(pairs.listed, caller.account, prefix, limit)
        return answer({"items": found})

    async def get_pair(self, request: web.Request, caller: Device) -> web.Response:
        key = request.match_info["key"]
        found = await self._core.database.read(pairs.get, caller.account, [key])
        if not found:
            raise RelayError(404, "Key not found")
        return answer(found[0])

    async def get_pairs(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.Keys) as wanted:
            self._check_count("body/keys", len(wanted.keys))
            found = await self._core.database.read(pairs.get, caller.account, wanted.keys)
        return answer({"values": found})

    async def change_pairs(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.Mutations) as wanted:
            self._check_count("body/mutations", len(wanted.mutations))
            changes = [Change(each.key, each.value, each.version) for each in wanted.mutations]
            if len({each.key for each in changes}) < len(changes):
                raise invalid("body/mutations", "must name each key once")
            errors, results, update = await self._core.database.write(
                within_quota, self._core.limits, pairs.change, caller.account, changes
            )
        if errors:
            return answer({"success": False, "errors": errors}, 409)
        versions = {each["key"]: each["version"] for each in results}
        told = [
            {"key": each.key, "value": each.value, "version": versions[each.key]}
            for each in changes
        ]
        body = {"t": "kv-batch-update", "changes": told}
        self._core.hub.update(caller.account, update, body)
        return answer({"success": True, "results": results})

    def _check_count(self, where: str, count: int) -> None:
        if count > self._core.limits.kv_batch:
            raise invalid(where, f"must have at most {self._core.limits.kv_batch} entries")

    # ── Artifacts ───────────────────────────────────────────────────────────────────────────

    async def artifacts(self, request: web.Request, caller: Device) -> web.Response:
        return answer(await self._core.database.read(artifacts.all_of, caller.account))

    async def artifact(self, request: web.Request, caller: Device) -> web.Response:
        artifact = request.match_info["id"]
        return answer(await self._core.database.read(artifacts.one, caller.account, artifact))

    async def create_artifact(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.NewArtifact) as new:
            made = await artifact_updates.make(self._core, caller.account, new)
        return answer(made)

    async def change_artifact(self, request: web.Request, caller: Device) -> web.Response:
        artifact = request.match_info["id"]
        async with self._core.mailroom.parsed(request, shapes.ArtifactChange) as wanted:
            header = both("header", wanted.header, wanted.expected_header_version)
            body = both("body", wanted.body, wanted.expected_body_version)
            now, is_done = await artifact_updates.alter(
                self._core, caller.account, artifact, header, body
            )
        if is_done:
            versions = {f"{name}Version": each.version for name, each in now.items()}
            return answer({"success": True, **versions})
        current: dict[str, object] = {}
        for name, each in now.items():
            current[f"current{name.title()}Version"] = each.version
            current[f"current{name.title()}"] = each.value
        return answer({"success": False, "error": "version-mismatch", **current})

    async def delete_artifact(self, request: web.Request, caller: Device) -> web.Response:
        await artifact_updates.remove(self._core, caller.account, request.match_info["id"])
        return answer({"success": True})


def both(name: str, value: object, version: object) -> tuple[bytes, int] | None:
    if value is UNSET:
        return None
    if not isinstance(value, bytes) or not isinstance(version, int):
        raise invalid(f"body/expected{name.title()}Version", f"must come with {name}")
    return value, version
