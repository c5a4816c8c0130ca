"""Daemon: what lives behind the doors. Storage, engine, models and feed, built and rebuilt here.

Constructing it touches nothing; `open` does what takes time, after clients can connect.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crabtalk.hooks import (
    Asks,
    BashHook,
    Composite,
    DelegateHook,
    DelegateLimits,
    FilesHook,
    McpHook,
    Memories,
    MemoryHook,
    SessionsHook,
    SkillHook,
    TitleHook,
    read_roots,
)
from crabtalk.mcp import Mcp, McpLimits, PortFiles, Status
from crabtalk.model import Registry, SettingsError, open_registry, read_settings
from crabtalk.policy import FileAccess, Owners, Policy, ToolInScope
from crabtalk.protocol import UnavailableError
from crabtalk.runtime import Clock, Hook, Limits, Runtime, SessionIndex, ToolDispatch
from crabtalk.storage import Agent, Storage, StorageError, StorageUnavailableError

from .bus import Bus
from .config import ignored, parse_config, unknown_words
from .env import DaemonEnv
from .feed import Feed, FeedLimits
from .firings import EventLimits
from .home import by_hand
from .instructions import Instructions
from .mcp_feed import McpFeed
from .mcp_migration import move_servers
from .opening import OpeningProvider
from .plugins import load_hooks
from .subscriptions import SubscriptionFile

if TYPE_CHECKING:
    from .fleet import Fleet

log = logging.getLogger(__name__)

# Pauses before storage that was not there is looked for again.
FIRST_PAUSE, LAST_PAUSE = 0.2, 5.0

CRAB = Agent(
    name="crab",
    description="General helper",
    prompt=(
        "You are crab, a helper. Be brief and exact; say so when you do not know, and ask when "
        "that saves work."
    ),
    # A new user's agent asks before it changes anything. Whoever trusts it more says so.
    mode="ask",
)


class Daemon:
    def __init__(
        self,
        home: Path,
        storage: Storage,
        document: Mapping[str, Any],
        *,
        limits: Limits | None = None,
        feed_limits: FeedLimits | None = None,
        delegate_limits: DelegateLimits | None = None,
        event_limits: EventLimits | None = None,
        mcp_limits: McpLimits | None = None,
        hook: Hook | None = None,
        hooks: Mapping[str, Hook] | None = None,
        keep_secret: Callable[[Iterable[str]], None] | None = None,
        fleet: "Fleet | None" = None,
    ) -> None:
        self.home = home
        self.storage = storage
        self.fleet = fleet  # the daemons that share this storage, where others can
        self.clock = Clock()
        self.feed = Feed(feed_limits or FeedLimits(), self.clock)
        self.bus = Bus(
            fleet.subscriptions
            if fleet is not None
            else SubscriptionFile(home / "events" / "subscriptions.toml"),
            lambda: self.runtime,
            event_limits,
            is_owner=lambda sender: self.policy.owners.is_owner(sender),
        )
        self._keep_secret = keep_secret or (lambda secrets: None)
        self._broken: dict[str, str] = {}
        self._trouble = ""  # with storage, at start
        self._opened = asyncio.Event()
        self._opening_again: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self.models = self._models_of(document)
        self.asks = Asks()
        self.policy = Policy(
            home,
            Owners(named_owners(document)),
            mode_of=lambda pair: self.runtime.mode(pair),
            remembered=lambda pair: self.runtime.approved(pair),
            roots_of=read_roots,
        )
        self._delegate_limits = delegate_limits
        self.skills = SkillHook(skill_roots(home, document))
        self._memories = Memories(
            fleet.memories if fleet is not None else home / "memory", flush=is_flushed(document)
        )
        self.memory = MemoryHook(self._memories, self.clock, lambda: self.policy.owners)
        self.index = SessionIndex(
            storage,
            home / "index" / "sessions",
            index_tool_results=lambda agent: self._sessions.indexes_tool_results(agent),
        )
        self._sessions = SessionsHook(self.index, self._is_owner)
        self.mcp_feed = McpFeed(feed_limits or FeedLimits(), self.clock)
        self.mcp = Mcp(
            home / "tokens",
            env=self._env_of(document),
            limits=mcp_limits,
            clock=self.clock,
            heard=self.mcp_feed.publish,
        )
        self._port_files = PortFiles(home, self.mcp)
        self._composite = self._built_in(hooks or {}) if hook is None else None
        self._plugin_problems: list[str] = []
        self._moved: list[str] = []  # what of older files could not be taken over
        self._ignored: list[str] = []  # what of the configuration nobody reads
        env = DaemonEnv(
            hook or self._composite or Hook(),
            self.feed,
            self.bus,
            Instructions(home),
            self.memory,
            Path.cwd(),
            self.policy,
        )
        self.runtime = Runtime(
            storage, self.models, env, limits=limits, clock=self.clock, index=self.index
        )
        if fleet is not None:
            fleet.join(self)

    def tools_of(self, agent: Agent) -> list[ToolInScope]:
        """All tools there are, for an explanation of what an agent may call."""
        return self._composite.tools_in_scope(agent) if self._composite is not None else []

    def _is_owner(self, sender: str) -> bool:
        return self.policy.owners.is_owner(sender)

    def bound_runs(self, most: int) -> None:
        """No more turns at once than that, whatever the limits say."""
        limits = self.runtime.limits
        self.runtime.limits = replace(limits, runs=min(limits.runs, most))

    def _built_in(self, others: Mapping[str, Hook]) -> Composite:
        """What every agent can do, as far as its file lets it. `others` come on top."""

        async def set_title(agent: str, title: str, sender: str) -> None:
            await self.runtime.set_title(agent, title, sender)

        def file_access(call: ToolDispatch) -> FileAccess:
            return self.policy.file_access(call.run, composite.gate.agent_of(call))

        hooks: dict[str, Hook] = {
            # The socket is out of a sandboxed command's reach: it could tell the daemon anything.
            "bash": BashHook(hidden=[self.home / "run"]),
            "delegate": DelegateHook(lambda: self.runtime, self._delegate_limits),
            "files": FilesHook(access=file_access),
            "mcp": McpHook(self.mcp, taken=lambda: {tool.name for tool in composite.schema()}),
            "memory": self.memory,
            "sessions": self._sessions,
            "skill": self.skills,
            "title": TitleHook(set_title),
            **others,
        }
        composite = Composite(
            hooks,
            self.asks,
            peers=lambda: self.runtime.agents,
            guards=[self.skills.allows],
            policy=self.policy,
            rule_memory=lambda: self.runtime,
            is_watched=self.feed.is_watched,
        )
        return composite

    def _env_of(self, document: Mapping[str, Any]) -> dict[str, str]:
        """What [env] adds to every MCP server's environment. It may hold secrets."""
        table = document.get("env")
        env = {k: v for k, v in table.items() if isinstance(v, str)} if table else {}
        self._keep_secret(env.values())
        return env

    def _models_of(self, document: Mapping[str, Any]) -> OpeningProvider:
        """Settings that cannot be used are a problem at once, not when a model is first needed."""

        async def opening() -> Registry:
            try:
                registry = await open_registry(
                    document,
                    models_directory=self.home / "models",
                    setup=by_hand("crabtalkd setup", self.home),
                )
            except SettingsError as error:
                raise self._unusable(error) from None
            self._keep_secret(registry.secrets)
            return registry

        provider = OpeningProvider(opening, default_model(document))
        try:
            settings = read_settings(document)
        except SettingsError as error:
            provider.problem = str(self._unusable(error))
            log.error("%s", provider.problem)  # noqa: TRY400 - a sentence for a person
        else:
            self._keep_secret(entry.api_key for entry in settings)
        return provider

    def _unusable(self, error: SettingsError) -> SettingsError:
        """With where it is to be mended, and when that is noticed."""
        reload = by_hand("crabtalkd reload", self.home)
        return SettingsError(f"{self.home / 'config.toml'}: {error}; mend it, then `{reload}`")

    async def open(self) -> None:
        """Loads the agents. Whatever fails is a problem to be shown, not a reason not to start."""
        try:
            if self._composite is not None:
                plugins, self._plugin_problems = await asyncio.to_thread(load_hooks)
                self._composite.add(plugins)
                self._moved = await asyncio.to_thread(move_servers, self.home)
                self._port_files.watch()
            # As it is now: what was moved is no longer in it.
            self._ignored = self._ignored_in(await self.storage.config())
            await self.skills.refresh()
            await self._open_storage()
        except StorageError as error:
            self._trouble = str(error)
            log.error("agents cannot be loaded: %s", error)  # noqa: TRY400 - a sentence for a person
            # What is shared may be mended elsewhere: a password, a schema, rights.
            if self.fleet is not None or isinstance(error, StorageUnavailableError):
                self._opening_again = asyncio.ensure_future(self._open_again())
        finally:
            self._opened.set()

    async def _open_storage(self) -> None:
        """Reads what is shared between conversations. Raises StorageError."""
        await self._load_agents()
        await self.bus.load()
        if not self.runtime.agents and not self._broken:
            await self.storage.save_agent(CRAB)
            self.register(CRAB)
        # Places in line are taken before the first turn is; the rest goes on behind it.
        await self.runtime.recover()

    async def _open_again(self) -> None:
        """Until it can be read."""
        pause = FIRST_PAUSE
        while self._trouble:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
            try:
                async with self._changing:
                    await self._open_storage()
            except StorageError as error:
                self._trouble = str(error)
            else:
                self._trouble = ""
                self._opening_again = None
                log.info("storage is there, with %d agents", len(self.runtime.agents))

    async def opened(self) -> Runtime:
        """The engine, once it was tried to load its agents."""
        if not self._opened.is_set():
            await self._opened.wait()
        return self.runtime

    async def ready(self) -> Runtime:
        """The engine, once its agents are there. Raises UnavailableError while they cannot be."""
        await self.opened()
        if self._opening_again is not None:
            raise UnavailableError(self._trouble)
        return self.runtime

    async def find_agent(self, name: str) -> None:
        """Learns of an agent that was made elsewhere a moment ago, if there is one."""
        if self.fleet is not None and name and name not in self.runtime.agents:
            agent = await self.storage.agent(name)
            if agent is not None:
                self.register(agent)

    async def reload_agents(self) -> None:
        """Others have changed them. Raises StorageError."""
        async with self._changing:
            await self._load_agents()

    @property
    def problems(self) -> list[str]:
        """What is wrong with the set-up, a sentence each."""
        found = [*self._broken.values(), *self._plugin_problems, *self._moved, *self.bus.problems]
        found += [*self._ignored, *self.skills.problems, *self._memories.problems]
        found += [
            f"the MCP server {owner.name} of {owner.agent} failed: {peer.error}"
            for owner, peer in self.mcp.states()
            if owner.agent and peer.status is Status.FAILED
        ]
        return found + [text for text in (self.models.problem, self._trouble) if text]

    async def reload(self) -> None:
        """Reads configuration and agents anew. Runs in flight go on as they are.

        Raises StorageError, ConfigError or SettingsError when the configuration cannot be used or
        the agents cannot be read; then all but the skills is as it was. Subscriptions that cannot
        be read stay those in force, which is a problem to be shown.
        """
        async with self._changing:
            document = await self.storage.config()
            # What only a start takes up must at least not prevent the next one. The address is
            # left out: the command line may have given another.
            parse_config(document, self.home / "config.toml", tcp="off")
            read_settings(document)
            await self.skills.refresh()
            await self._load_agents()
            await self.bus.load()
            self._trouble = ""
            self.policy.owners = Owners(named_owners(document), self.policy.owners.account)
            self.mcp.env = self._env_of(document)
            self.mcp.retry()
            before, self.models = self.models, self._models_of(document)
            self.runtime.use(self.models)
            self.models.take_over(before)
            self._ignored = self._ignored_in(document)
        for sentence in self._ignored:
            log.warning("%s", sentence)
        log.info("reloaded, with %d agents", len(self.runtime.agents))

    def _ignored_in(self, document: Mapping[str, Any]) -> list[str]:
        return ignored(unknown_words(document), self.home / "config.toml")

    async def _load_agents(self) -> None:
        self._broken = await self.runtime.load_agents()
        for sentence in self._broken.values():
            log.error("%s", sentence)
        for agent in self.runtime.agents.values():
            self._guard(agent)

    def register(self, agent: Agent) -> None:
        """Adds an agent as it was just written, or puts it in the other's place."""
        self._guard(agent)
        self.runtime.register(agent)
        self._broken.pop(agent.name, None)

    def unregister(self, name: str) -> None:
        self.runtime.unregister(name)
        self._broken.pop(name, None)

    def _guard(self, agent: Agent) -> None:
        """Keeps what an agent carries in confidence out of the logs."""
        for server in agent.mcps:
            self._keep_secret([server.auth, *server.env.values()])

    def changing(self) -> asyncio.Lock:
        """Held while agents or configuration are read, changed and written."""
        return self._changing

    async def close(self) -> None:
        """Stops what runs, and keeps all of it."""
        if self._opening_again is not None:
            self._opening_again.cancel()
        await self.bus.close()
        await self.runtime.close()
        if self.fleet is not None:
            await self.fleet.close()
        await self._port_files.close()
        await self.mcp.close()
        await self.index.close()
        await self._memories.close()
        await self.storage.close()


def default_model(document: Mapping[str, Any]) -> str:
    """The one that is written down, if any."""
    for section in ("daemon", "llm"):
        table = document.get(section)
        if isinstance(table, Mapping) and isinstance(model := table.get("model"), str) and model:
            return model
    return ""


def named_owners(document: Mapping[str, Any]) -> list[str]:
    """[daemon] owners: further senders that are the owner."""
    table = document.get("daemon")
    owners = table.get("owners", []) if isinstance(table, Mapping) else []
    return [sender for sender in owners if isinstance(sender, str) and sender]


def is_flushed(document: Mapping[str, Any]) -> bool:
    """Whether what is kept survives a power cut."""
    table = document.get("storage")
    return not isinstance(table, Mapping) or table.get("durability", "fsync") == "fsync"


def skill_roots(home: Path, document: Mapping[str, Any]) -> list[tuple[str, Path]]:
    """Where skills are looked for, the first to have one wins. Those of other programs, only when
    `external` in [skills] says so."""
    roots = [("local", home / "skills"), ("agents", Path.home() / ".agents" / "skills")]
    table = document.get("skills")
    if isinstance(table, Mapping) and table.get("external") is True:
        roots += [(name, Path.home() / f".{name}" / "skills") for name in ("claude", "codex")]
    return roots
