"""Routes for account data: settings, profile, key-value pairs, artifacts, push tokens."""

from aiohttp import web
from msgspec import UNSET

from . import accounts, artifact_updates, artifacts, key_values, request_types
from .accounts import AccountDevice, run_within_quota
from .context import RelayContext
from .errors import RelayError, build_invalid_error
from .ids import now_ms
from .key_values import KeyValueChange
from .request_bodies import build_json_response, read_query_number
from .routing import AuthenticatedRoute, PublicRoute

MAX_PUSH_TOKENS = 100


class AccountRoutes:
    def __init__(self, context: RelayContext) -> None:
        self._context = context

    def routes(self) -> list[AuthenticatedRoute | PublicRoute]:
        return [
            AuthenticatedRoute("GET", "/v1/account/profile", self.get_profile),
            AuthenticatedRoute("GET", "/v1/account/settings", self.get_settings),
            AuthenticatedRoute("POST", "/v1/account/settings", self.set_settings),
            AuthenticatedRoute("GET", "/v1/push-tokens", self.list_push_tokens),
            AuthenticatedRoute("POST", "/v1/push-tokens", self.add_push_token),
            AuthenticatedRoute("DELETE", "/v1/push-tokens/{token}", self.delete_push_token),
            AuthenticatedRoute("GET", "/v1/kv", self.list_pairs),
            AuthenticatedRoute("POST", "/v1/kv", self.change_pairs),
            AuthenticatedRoute("POST", "/v1/kv/bulk", self.get_pairs),
            AuthenticatedRoute("GET", "/v1/kv/{key}", self.get_pair),
            AuthenticatedRoute("GET", "/v1/artifacts", self.list_artifacts),
            AuthenticatedRoute("POST", "/v1/artifacts", self.create_artifact),
            AuthenticatedRoute("GET", "/v1/artifacts/{id}", self.get_artifact),
            AuthenticatedRoute("POST", "/v1/artifacts/{id}", self.change_artifact),
            AuthenticatedRoute("DELETE", "/v1/artifacts/{id}", self.delete_artifact),
        ]

    async def get_profile(self, request: web.Request, caller: AccountDevice) -> web.Response:
        """Profiles have no names on this relay."""
        return build_json_response(
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

    async def get_settings(self, request: web.Request, caller: AccountDevice) -> web.Response:
        value, version = await self._context.database.read(accounts.get_settings, caller.account)
        return build_json_response({"settings": value, "settingsVersion": version})

    async def set_settings(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(
            request, request_types.SettingsChange
        ) as change:
            is_done, value, version, update = await self._context.database.write(
                run_within_quota,
                self._context.limits,
                accounts.set_settings,
                caller.account,
                change.settings,
                change.expected_version,
            )
        if not is_done:
            return build_json_response(
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
        self._context.hub.send_update(caller.account, update, body)
        return build_json_response({"success": True, "version": version})

    # ── Push tokens ─────────────────────────────────────────────────────────────────────────

    async def list_push_tokens(self, request: web.Request, caller: AccountDevice) -> web.Response:
        rows = await self._context.database.read(accounts.list_push_tokens, caller.account)
        return build_json_response({"tokens": rows})

    async def add_push_token(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(request, request_types.PushToken) as new:
            await self._context.database.write(
                accounts.add_push_token, caller.account, new.token, MAX_PUSH_TOKENS
            )
        return build_json_response({"success": True})

    async def delete_push_token(self, request: web.Request, caller: AccountDevice) -> web.Response:
        token = request.match_info["token"]
        await self._context.database.write(accounts.delete_push_token, caller.account, token)
        return build_json_response({"success": True})

    # ── Pairs ───────────────────────────────────────────────────────────────────────────────

    async def list_pairs(self, request: web.Request, caller: AccountDevice) -> web.Response:
        limit = read_query_number(request, "limit", 1, self._context.limits.kv_list, 100)
        prefix = request.query.get("prefix", "")
        rows = await self._context.database.read(
            key_values.list_values, caller.account, prefix, limit
        )
        return build_json_response({"items": rows})

    async def get_pair(self, request: web.Request, caller: AccountDevice) -> web.Response:
        key = request.match_info["key"]
        rows = await self._context.database.read(key_values.get_values, caller.account, [key])
        if not rows:
            raise RelayError(404, "Key not found")
        return build_json_response(rows[0])

    async def get_pairs(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(request, request_types.KeyList) as change:
            self._check_count("body/keys", len(change.keys))
            rows = await self._context.database.read(
                key_values.get_values, caller.account, change.keys
            )
        return build_json_response({"values": rows})

    async def change_pairs(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(request, request_types.Mutations) as change:
            self._check_count("body/mutations", len(change.mutations))
            changes = [
                KeyValueChange(entry.key, entry.value, entry.version) for entry in change.mutations
            ]
            if len({entry.key for entry in changes}) < len(changes):
                raise build_invalid_error("body/mutations", "must name each key once")
            errors, results, update = await self._context.database.write(
                run_within_quota,
                self._context.limits,
                key_values.change_values,
                caller.account,
                changes,
            )
        if errors:
            return build_json_response({"success": False, "errors": errors}, 409)
        versions = {entry["key"]: entry["version"] for entry in results}
        announced = [
            {"key": entry.key, "value": entry.value, "version": versions[entry.key]}
            for entry in changes
        ]
        body = {"t": "kv-batch-update", "changes": announced}
        self._context.hub.send_update(caller.account, update, body)
        return build_json_response({"success": True, "results": results})

    def _check_count(self, where: str, count: int) -> None:
        if count > self._context.limits.kv_batch:
            raise build_invalid_error(
                where, f"must have at most {self._context.limits.kv_batch} entries"
            )

    # ── Artifacts ───────────────────────────────────────────────────────────────────────────

    async def list_artifacts(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return build_json_response(
            await self._context.database.read(artifacts.list_artifacts, caller.account)
        )

    async def get_artifact(self, request: web.Request, caller: AccountDevice) -> web.Response:
        artifact = request.match_info["id"]
        return build_json_response(
            await self._context.database.read(artifacts.get_artifact, caller.account, artifact)
        )

    async def create_artifact(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(request, request_types.NewArtifact) as new:
            artifact = await artifact_updates.create_and_announce(
                self._context, caller.account, new
            )
        return build_json_response(artifact)

    async def change_artifact(self, request: web.Request, caller: AccountDevice) -> web.Response:
        artifact = request.match_info["id"]
        async with self._context.body_reader.read_body(
            request, request_types.ArtifactChange
        ) as change:
            header = pair_value_with_version(
                "header", change.header, change.expected_header_version
            )
            body = pair_value_with_version("body", change.body, change.expected_body_version)
            now, is_done = await artifact_updates.change_and_announce(
                self._context, caller.account, artifact, header, body
            )
        if is_done:
            versions = {f"{name}Version": entry.version for name, entry in now.items()}
            return build_json_response({"success": True, **versions})
        current: dict[str, object] = {}
        for name, entry in now.items():
            current[f"current{name.title()}Version"] = entry.version
            current[f"current{name.title()}"] = entry.value
        return build_json_response({"success": False, "error": "version-mismatch", **current})

    async def delete_artifact(self, request: web.Request, caller: AccountDevice) -> web.Response:
        await artifact_updates.delete_and_announce(
            self._context, caller.account, request.match_info["id"]
        )
        return build_json_response({"success": True})


def pair_value_with_version(name: str, value: object, version: object) -> tuple[bytes, int] | None:
    if value is UNSET:
        return None
    if not isinstance(value, bytes) or not isinstance(version, int):
        raise build_invalid_error(f"body/expected{name.title()}Version", f"must come with {name}")
    return value, version
