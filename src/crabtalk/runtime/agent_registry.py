"""AgentRegistry: agents that can be addressed, and temporary agents for one task each.

It has each agent as it was written; the hooks build the agent that runs when it is first used.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType

from crabtalk.storage import Agent, AgentError, Storage

from .errors import UnknownAgentError
from .hook import Env

log = logging.getLogger(__name__)


class AgentRegistry:
    def __init__(self, env: Env) -> None:
        self._env = env
        self._registered: dict[str, Agent] = {}  # as they were written
        self._temporary: dict[str, Agent] = {}  # for one task each; clients cannot address them
        self._built_agents: dict[str, Agent] = {}  # as they run

    @property
    def registered(self) -> Mapping[str, Agent]:
        return MappingProxyType(self._registered)

    def find_definition(self, name: str) -> Agent:
        """Raises UnknownAgentError."""
        try:
            return self._temporary.get(name) or self._registered[name]
        except KeyError:
            known = ", ".join(sorted(self._registered)) or "none yet"
            sentence = f"no agent is called {name[:80]!r}; there are: {known[:400]}"
            raise UnknownAgentError(sentence) from None

    def build_agent(self, name: str) -> Agent:
        """Raises UnknownAgentError."""
        if (built := self._built_agents.get(name)) is not None:
            return built
        return self._built_agents.setdefault(
            name, self._env.hook.on_build_agent(self.find_definition(name))
        )

    def register(self, agent: Agent) -> None:
        built = self._env.hook.on_build_agent(agent)
        self._env.hook.on_register_agent(agent.name, agent)
        self._registered[agent.name] = agent
        # An agent's prompt may mention the others, so all are built again when next used.
        self._built_agents = {agent.name: built}

    def unregister(self, name: str) -> None:
        if self._registered.pop(name, None) is not None:
            self._built_agents.clear()
            self._env.hook.on_unregister_agent(name)

    def add_temporary(self, agent: Agent) -> None:
        self._env.hook.on_register_agent(agent.name, agent)
        self._temporary[agent.name] = agent

    def remove_temporary(self, name: str) -> None:
        if self._temporary.pop(name, None) is not None:
            self._built_agents.pop(name, None)
            self._env.hook.on_unregister_agent(name)

    async def load(self, storage: Storage) -> dict[str, str]:
        """Registers what storage has. Returns the reason for each agent that cannot be used, by
        name. Raises StorageError."""
        stored, broken = await storage.list_agents()
        self._built_agents.clear()
        for agent in stored:
            if self._registered.get(agent.name) == agent:
                continue
            try:
                self.register(agent)
            except AgentError as error:
                broken[agent.name] = str(error)
            except Exception as error:
                log.exception("the agent %s cannot be registered", agent.name)
                broken[agent.name] = str(error)
        for name in self._registered.keys() - {agent.name for agent in stored} - broken.keys():
            self.unregister(name)
        return broken
