"""AgentHandlers: the requests about agents, skills and models."""

import asyncio
import json
from typing import Any

from crabtalk.daemon.daemon import DEFAULT_AGENT, Daemon
from crabtalk.model import ModelInfo
from crabtalk.protocol import (
    BadRequestError,
    NotFoundError,
    Server,
    UnavailableError,
    wire,
)
from crabtalk.storage import Agent, AgentError, check_agent_name, parse_agent, unmask_settings

from .error_mapping import translate_errors, unknown_agent_error
from .wire_conversion import to_agent_info

MAX_SETTINGS_CHARS = 256 * 1024
MAX_CONTEXT_TOKENS = 1 << 40  # more than any model has, and within the range of the wire's type
# Seconds to ask all providers for their models.
LIST_MODELS_TIMEOUT_SECONDS = 10.0


class AgentHandlers(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        runtime = await self._daemon.wait_until_ready()
        agents = sorted(runtime.agents.values(), key=lambda agent: agent.name)
        return wire.AgentList(agents=[to_agent_info(agent) for agent in agents])

    async def get_agent(self, request: wire.GetAgentMsg) -> wire.AgentInfo:
        return to_agent_info(await self._require_agent(request.name))

    async def create_agent(self, request: wire.CreateAgentMsg) -> wire.AgentInfo:
        runtime = await self._daemon.wait_until_ready()
        async with self._daemon.change_lock():
            with translate_errors():
                check_agent_name(request.name)
                stored = await self._daemon.storage.load_agent(request.name)
            if stored is not None or request.name in runtime.agents:
                raise BadRequestError(
                    f"an agent called {request.name!r} is there already; "
                    "edit it, or choose another name"
                )
            with translate_errors():
                document = unmask_settings(parse_settings(request.config), None)
                prompt = check_settings_length(request.prompt)
                return await self._save_agent(parse_agent(request.name, document, prompt))

    async def update_agent(self, request: wire.UpdateAgentMsg) -> wire.AgentInfo:
        runtime = await self._daemon.wait_until_ready()
        async with self._daemon.change_lock():
            with translate_errors():
                check_agent_name(request.name)
                stored = await self._load_stored_agent(request.name) or runtime.agents.get(
                    request.name
                )
                prompt = check_settings_length(request.prompt) or (
                    stored.prompt if stored is not None else ""
                )
                document = unmask_settings(parse_settings(request.config), stored)
                return await self._save_agent(parse_agent(request.name, document, prompt))

    async def _load_stored_agent(self, name: str) -> Agent | None:
        """The agent as stored now, in case a person edited its file; None if it is invalid."""
        try:
            return await self._daemon.storage.load_agent(name)
        except AgentError:
            return None

    async def _save_agent(self, agent: Agent) -> wire.AgentInfo:
        """Store the agent before using it, so that an acknowledged change survives a crash."""
        await self._daemon.storage.save_agent(agent)
        self._daemon.register(agent)
        return to_agent_info(agent)

    async def delete_agent(self, request: wire.DeleteAgentMsg) -> None:
        runtime = await self._daemon.wait_until_ready()
        async with self._daemon.change_lock():
            with translate_errors():
                check_agent_name(request.name)
                deleted = await self._daemon.storage.delete_agent(request.name)
            if not deleted and request.name not in runtime.agents:
                raise unknown_agent_error(request.name)
            self._daemon.unregister(request.name)

    async def rename_agent(self, request: wire.RenameAgentMsg) -> wire.AgentInfo:
        await self._daemon.wait_until_ready()
        async with self._daemon.change_lock():
            agent = await self._require_agent(request.old_name)
            if request.new_name == agent.name:
                return to_agent_info(agent)
            if agent.name == DEFAULT_AGENT.name:
                raise BadRequestError(
                    "crab keeps its name; copy agents/crab.toml to have it under another"
                )
            with translate_errors():
                check_agent_name(request.new_name)
                if await self._daemon.storage.load_agent(agent.name) is None:
                    raise unknown_agent_error(agent.name)
                return await self._store_renamed_agent(agent, request.new_name)

    async def _store_renamed_agent(self, agent: Agent, name: str) -> wire.AgentInfo:
        import msgspec

        await self._daemon.storage.rename_agent(agent.name, name)
        renamed = msgspec.structs.replace(agent, name=name)
        self._daemon.register(renamed)
        self._daemon.unregister(agent.name)
        await self._daemon.memory.rename(agent.name, name)
        return to_agent_info(renamed)

    async def _require_agent(self, name: str) -> Agent:
        runtime = await self._daemon.wait_until_ready()
        agent = runtime.agents.get(name)
        if agent is None:
            raise unknown_agent_error(name)
        return agent

    async def list_skills(self, request: wire.ListSkillsMsg) -> wire.SkillList:
        await self._daemon.wait_until_ready()
        await self._daemon.skills.refresh()
        return wire.SkillList(
            skills=[
                wire.SkillInfo(
                    name=name,
                    source=source,
                    source_kind=wire.LOCAL if source == "local" else wire.EXTERNAL,
                )
                for name, source in self._daemon.skills.list_sources()
            ]
        )

    # ── Models ──────────────────────────────────────────────────────────────────────────────

    async def list_models(self, request: wire.ListModelsMsg) -> wire.ModelList:
        with translate_errors():
            models = await self._fetch_models()
            active = self._daemon.models.active
            if not active and models:
                active = await self._daemon.models.default_model()
        return wire.ModelList(
            models=[
                wire.ModelInfo(
                    name=model.name,
                    active=model.name == active,
                    context_limit=sanitize_context_limit(model.context_limit),
                )
                for model in models
            ]
        )

    async def set_active_model(self, request: wire.SetActiveModelMsg) -> None:
        if not request.model.strip():
            raise BadRequestError("the model has no name; `crabtalkd models` lists those there are")
        async with self._daemon.change_lock():
            with translate_errors():
                registry = await self._daemon.models.open_registry()
                names = [model.name for model in await self._fetch_models()]
                if not registry.entries:
                    raise NotFoundError(registry.no_model_message)
                if names and request.model not in names:
                    raise NotFoundError(
                        f"no provider offers {request.model[:80]!r}; "
                        f"there are {', '.join(names[:10])}"
                    )
                await self._daemon.storage.set_config_value("daemon", "model", request.model)
                registry.set_active(request.model)

    async def _fetch_models(self) -> list[ModelInfo]:
        try:
            async with asyncio.timeout(LIST_MODELS_TIMEOUT_SECONDS):
                return await self._daemon.models.models()
        except TimeoutError:
            raise UnavailableError("the providers do not say what they offer; try later") from None


def sanitize_context_limit(limit: int | None) -> int | None:
    """The limit, or None if the vendor's number is not plausible."""
    return limit if limit is not None and 0 < limit <= MAX_CONTEXT_TOKENS else None


def check_settings_length(text: str) -> str:
    """Raises BadRequestError for settings or a prompt that no model could read."""
    if len(text) > MAX_SETTINGS_CHARS:
        raise BadRequestError(f"config and prompt may have {MAX_SETTINGS_CHARS} characters each")
    return text


def parse_settings(text: str) -> dict[str, Any]:
    try:
        document = json.loads(check_settings_length(text) or "{}")
    except ValueError as error:
        raise BadRequestError(f"config is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequestError("config is nested too deeply") from None
    if not isinstance(document, dict):
        raise BadRequestError("config must be a JSON object; {} has all the defaults")
    return document
