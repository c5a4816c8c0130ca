"""AgentsServer: the requests about agents, their skills and their models."""

import asyncio
import json
from typing import Any

from crabtalk.model import ModelInfo
from crabtalk.protocol import (
    BadRequestError,
    NotFoundError,
    Server,
    UnavailableError,
    wire,
)
from crabtalk.storage import Agent, AgentError, check_name, read_agent, unmask

from .answers import agent_info
from .daemon import CRAB, Daemon
from .refusals import answered, no_agent

LARGEST_SETTINGS = 256 * 1024
LARGEST_CONTEXT = 1 << 40  # tokens; far beyond any, and within the wire's numbers
# What asking all providers for their models may take.
ASKING = 10.0


class AgentsServer(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        runtime = await self._daemon.ready()
        agents = sorted(runtime.agents.values(), key=lambda agent: agent.name)
        return wire.AgentList(agents=[agent_info(agent) for agent in agents])

    async def get_agent(self, request: wire.GetAgentMsg) -> wire.AgentInfo:
        return agent_info(await self._agent(request.name))

    async def create_agent(self, request: wire.CreateAgentMsg) -> wire.AgentInfo:
        runtime = await self._daemon.ready()
        async with self._daemon.changing():
            with answered():
                check_name(request.name)
                stored = await self._daemon.storage.agent(request.name)
            if stored is not None or request.name in runtime.agents:
                raise BadRequestError(
                    f"an agent called {request.name!r} is there already; "
                    "edit it, or choose another name"
                )
            with answered():
                document = unmask(parse_settings(request.config), None)
                prompt = bounded(request.prompt)
                return await self._save(read_agent(request.name, document, prompt))

    async def update_agent(self, request: wire.UpdateAgentMsg) -> wire.AgentInfo:
        runtime = await self._daemon.ready()
        async with self._daemon.changing():
            with answered():
                check_name(request.name)
                stored = await self._written(request.name) or runtime.agents.get(request.name)
                prompt = bounded(request.prompt) or (stored.prompt if stored is not None else "")
                document = unmask(parse_settings(request.config), stored)
                return await self._save(read_agent(request.name, document, prompt))

    async def _written(self, name: str) -> Agent | None:
        """What its file says now, which a person may have changed; a broken one says nothing."""
        try:
            return await self._daemon.storage.agent(name)
        except AgentError:
            return None

    async def _save(self, agent: Agent) -> wire.AgentInfo:
        """On disk first: what is acknowledged survives."""
        await self._daemon.storage.save_agent(agent)
        self._daemon.register(agent)
        return agent_info(agent)

    async def delete_agent(self, request: wire.DeleteAgentMsg) -> None:
        runtime = await self._daemon.ready()
        async with self._daemon.changing():
            with answered():
                check_name(request.name)
                deleted = await self._daemon.storage.delete_agent(request.name)
            if not deleted and request.name not in runtime.agents:
                raise no_agent(request.name)
            self._daemon.unregister(request.name)

    async def rename_agent(self, request: wire.RenameAgentMsg) -> wire.AgentInfo:
        await self._daemon.ready()
        async with self._daemon.changing():
            agent = await self._agent(request.old_name)
            if request.new_name == agent.name:
                return agent_info(agent)
            if agent.name == CRAB.name:
                raise BadRequestError(
                    "crab keeps its name; copy agents/crab.toml to have it under another"
                )
            with answered():
                check_name(request.new_name)
                if await self._daemon.storage.agent(agent.name) is None:
                    raise no_agent(agent.name)
                return await self._rename(agent, request.new_name)

    async def _rename(self, agent: Agent, name: str) -> wire.AgentInfo:
        import msgspec

        await self._daemon.storage.rename_agent(agent.name, name)
        renamed = msgspec.structs.replace(agent, name=name)
        self._daemon.register(renamed)
        self._daemon.unregister(agent.name)
        await self._daemon.memory.rename(agent.name, name)
        return agent_info(renamed)

    async def _agent(self, name: str) -> Agent:
        runtime = await self._daemon.ready()
        agent = runtime.agents.get(name)
        if agent is None:
            raise no_agent(name)
        return agent

    async def list_skills(self, request: wire.ListSkillsMsg) -> wire.SkillList:
        await self._daemon.ready()
        await self._daemon.skills.refresh()
        return wire.SkillList(
            skills=[
                wire.SkillInfo(
                    name=name,
                    source=source,
                    source_kind=wire.LOCAL if source == "local" else wire.EXTERNAL,
                )
                for name, source in self._daemon.skills.list()
            ]
        )

    # ── Models ──────────────────────────────────────────────────────────────────────────────

    async def list_models(self, request: wire.ListModelsMsg) -> wire.ModelList:
        with answered():
            models = await self._models()
            active = self._daemon.models.active
            if not active and models:
                active = await self._daemon.models.default_model()
        return wire.ModelList(
            models=[
                wire.ModelInfo(
                    name=model.name,
                    active=model.name == active,
                    context_limit=plausible(model.context_limit),
                )
                for model in models
            ]
        )

    async def set_active_model(self, request: wire.SetActiveModelMsg) -> None:
        if not request.model.strip():
            raise BadRequestError("the model has no name; `crabtalkd models` lists those there are")
        async with self._daemon.changing():
            with answered():
                registry = await self._daemon.models.registry()
                names = [model.name for model in await self._models()]
                if not registry.entries:
                    raise NotFoundError(registry.no_model)
                if names and request.model not in names:
                    raise NotFoundError(
                        f"no provider offers {request.model[:80]!r}; "
                        f"there are {', '.join(names[:10])}"
                    )
                await self._daemon.storage.configure("daemon", "model", request.model)
                registry.prefer(request.model)

    async def _models(self) -> list[ModelInfo]:
        try:
            async with asyncio.timeout(ASKING):
                return await self._daemon.models.models()
        except TimeoutError:
            raise UnavailableError("the providers do not say what they offer; try later") from None


def plausible(limit: int | None) -> int | None:
    """A number of tokens; what else a vendor says is not passed on."""
    return limit if limit is not None and 0 < limit <= LARGEST_CONTEXT else None


def bounded(text: str) -> str:
    """Settings and prompts; a model could not read more anyway."""
    if len(text) > LARGEST_SETTINGS:
        raise BadRequestError(f"config and prompt may have {LARGEST_SETTINGS} characters each")
    return text


def parse_settings(text: str) -> dict[str, Any]:
    try:
        document = json.loads(bounded(text) or "{}")
    except ValueError as error:
        raise BadRequestError(f"config is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequestError("config is nested too deeply") from None
    if not isinstance(document, dict):
        raise BadRequestError("config must be a JSON object; {} has all the defaults")
    return document
