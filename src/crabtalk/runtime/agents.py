"""Agents: those that can be addressed, those made for a task, and how each of them runs.

An agent is kept as it was written, and built by the hooks when it is first used.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType

from crabtalk.storage import Agent, AgentError, Storage

from .errors import UnknownAgentError
from .hook import Env

log = logging.getLogger(__name__)


class Agents:
    def __init__(self, env: Env) -> None:
        self._env = env
        self._listed: dict[str, Agent] = {}  # as they were written
        self._made: dict[str, Agent] = {}  # for one task each; nobody can address them by name
        self._built: dict[str, Agent] = {}  # as they run

    @property
    def listed(self) -> Mapping[str, Agent]:
        return MappingProxyType(self._listed)

    def written(self, name: str) -> Agent:
        """Raises UnknownAgentError."""
        try:
            return self._made.get(name) or self._listed[name]
        except KeyError:
            known = ", ".join(sorted(self._listed)) or "none yet"
            sentence = f"no agent is called {name[:80]!r}; there are: {known[:400]}"
            raise UnknownAgentError(sentence) from None

    def built(self, name: str) -> Agent:
        """Raises UnknownAgentError."""
        if (built := self._built.get(name)) is not None:
            return built
        return self._built.setdefault(name, self._env.hook.on_build_agent(self.written(name)))

    def register(self, agent: Agent) -> None:
        built = self._env.hook.on_build_agent(agent)
        self._env.hook.on_register_agent(agent.name, agent)
        self._listed[agent.name] = agent
        # What an agent is told may speak of the others, so all are built anew when next used.
        self._built = {agent.name: built}

    def unregister(self, name: str) -> None:
        if self._listed.pop(name, None) is not None:
            self._built.clear()
            self._env.hook.on_unregister_agent(name)

    def adopt(self, agent: Agent) -> None:
        self._env.hook.on_register_agent(agent.name, agent)
        self._made[agent.name] = agent

    def dismiss(self, name: str) -> None:
        if self._made.pop(name, None) is not None:
            self._built.pop(name, None)
            self._env.hook.on_unregister_agent(name)

    async def load(self, storage: Storage) -> dict[str, str]:
        """Those that cannot be used, by name, with a sentence why. Raises StorageError."""
        found, broken = await storage.agents()
        self._built.clear()
        for agent in found:
            if self._listed.get(agent.name) == agent:
                continue
            try:
                self.register(agent)
            except AgentError as error:
                broken[agent.name] = str(error)
            except Exception as error:
                log.exception("the agent %s cannot be registered", agent.name)
                broken[agent.name] = str(error)
        for name in self._listed.keys() - {agent.name for agent in found} - broken.keys():
            self.unregister(name)
        return broken
