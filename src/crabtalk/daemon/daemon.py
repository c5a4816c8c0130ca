"""Daemon: builds storage, engine, models and feed, and rebuilds them on reload.

It does not listen for clients. The constructor does no I/O; `open` does the slow work, after
clients can connect.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crabtalk.hooks import (
    AskRegistry,
    BashHook,
    CompositeHook,
    DelegateHook,
    DelegateLimits,
    FilesHook,
    McpHook,
    MemoryHook,
    MemoryPool,
    SessionsHook,
    SkillHook,
    TitleHook,
    read_roots,
)
from crabtalk.mcp import McpLimits, McpServerManager, PeerStatus, PortFileWatcher
from crabtalk.model import ProviderSettingsError, Registry, open_registry, read_provider_settings
from crabtalk.policy import FileAccess, Owners, Policy, ToolInScope
from crabtalk.protocol import UnavailableError
from crabtalk.runtime import Clock, Hook, Runtime, RuntimeLimits, SessionIndex, ToolDispatch
from crabtalk.storage import Agent, Storage, StorageError, StorageUnavailableError

from .config.instruction_files import InstructionLoader
from .config.mcp_migration import move_mcp_servers
from .config.settings import describe_unknown_keys, find_unknown_keys, parse_config
from .env import DaemonEnv
from .events.event_bus import EventBus
from .events.feed import Feed, FeedLimits
from .events.mcp_feed import McpFeed
from .events.run_queue import EventLimits
from .events.subscription_file import SubscriptionFile
from .process.home import format_command
from .process.lazy_provider import LazyProvider
from .process.plugins import load_hooks

if TYPE_CHECKING:
    from .fleet.coordinator import Fleet

log = logging.getLogger(__name__)

# Delays before unreachable storage is tried again.
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.2, 5.0

DEFAULT_AGENT = Agent(
    name="crab",
    description="General helper",
    prompt=(
        "You are crab, a helper. Be brief and exact; say so when you do not know, and ask when "
        "that saves work."
    ),
    # A new user's agent asks before it changes anything. The user can relax that.
    mode="ask",
)


class Daemon:
    def __init__(
        self,
        home: Path,
        storage: Storage,
        document: Mapping[str, Any],
        *,
        limits: RuntimeLimits | None = None,
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
        self.fleet = fleet  # the daemons that share this storage; None if it cannot be shared
        self.clock = Clock()
        self.feed = Feed(feed_limits or FeedLimits(), self.clock)
        self.bus = EventBus(
            fleet.subscriptions
            if fleet is not None
            else SubscriptionFile(home / "events" / "subscriptions.toml"),
            lambda: self.runtime,
            event_limits,
            is_owner=lambda sender: self.policy.owners.is_owner(sender),
        )
        self._add_secrets = keep_secret or (lambda secrets: None)
        self._broken_agents: dict[str, str] = {}
        self._storage_error = ""  # empty if storage could be read
        self._opened = asyncio.Event()
        self._retry_task: asyncio.Task[None] | None = None
        self._change_lock = asyncio.Lock()
        self.models = self._create_provider(document)
        self.pending_questions = AskRegistry()
        self.policy = Policy(
            home,
            Owners(read_owners(document)),
            mode_of=lambda pair: self.runtime.get_mode(pair),
            remembered=lambda pair: self.runtime.approved_rules(pair),
            roots_of=read_roots,
        )
        self._delegate_limits = delegate_limits
        self.skills = SkillHook(list_skill_roots(home, document))
        self._memory_pool = MemoryPool(
            fleet.memory_store if fleet is not None else home / "memory",
            flush=is_flush_enabled(document),
        )
        self.memory = MemoryHook(self._memory_pool, self.clock, lambda: self.policy.owners)
        self.index = SessionIndex(
            storage,
            home / "index" / "sessions",
            index_tool_results=lambda agent: self._sessions.indexes_tool_results(agent),
        )
        self._sessions = SessionsHook(self.index, self._is_owner)
        self.mcp_feed = McpFeed(feed_limits or FeedLimits(), self.clock)
        self.mcp = McpServerManager(
            home / "tokens",
            env=self._read_mcp_env(document),
            limits=mcp_limits,
            clock=self.clock,
            heard=self.mcp_feed.publish,
        )
        self._port_files = PortFileWatcher(home, self.mcp)
        self._composite = self._build_hooks(hooks or {}) if hook is None else None
        self._plugin_problems: list[str] = []
        self._migration_problems: list[str] = []  # older files that could not be migrated
        self._ignored_settings: list[str] = []  # configuration keys that mean nothing
        env = DaemonEnv(
            hook or self._composite or Hook(),
            self.feed,
            self.bus,
            InstructionLoader(home),
            self.memory,
            Path.cwd(),
            self.policy,
        )
        self.runtime = Runtime(
            storage, self.models, env, limits=limits, clock=self.clock, index=self.index
        )
        if fleet is not None:
            fleet.join(self)

    def list_tools(self, agent: Agent) -> list[ToolInScope]:
        """All tools, to explain which of them an agent may call."""
        return self._composite.tools_in_scope(agent) if self._composite is not None else []

    def _is_owner(self, sender: str) -> bool:
        return self.policy.owners.is_owner(sender)

    def limit_runs(self, most: int) -> None:
        """Lower the limit of concurrent turns to `most`."""
        limits = self.runtime.limits
        self.runtime.limits = replace(limits, runs=min(limits.runs, most))

    def _build_hooks(self, others: Mapping[str, Hook]) -> CompositeHook:
        """The hooks of every agent; its file says which it may use. `others` are added to them."""

        async def set_title(agent: str, title: str, sender: str) -> None:
            await self.runtime.set_title(agent, title, sender)

        def file_access(call: ToolDispatch) -> FileAccess:
            return self.policy.grant_file_access(call.run, composite.gate.require_agent(call))

        hooks: dict[str, Hook] = {
            # A sandboxed command must not reach the socket: it could send the daemon any request.
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
        composite = CompositeHook(
            hooks,
            self.pending_questions,
            peers=lambda: self.runtime.agents,
            guards=[self.skills.find_refusal],
            policy=self.policy,
            rule_memory=lambda: self.runtime,
            is_watched=self.feed.is_watched,
        )
        return composite

    def _read_mcp_env(self, document: Mapping[str, Any]) -> dict[str, str]:
        """Variables that [env] adds to every MCP server's environment. They may hold secrets."""
        table = document.get("env")
        env = {k: v for k, v in table.items() if isinstance(v, str)} if table else {}
        self._add_secrets(env.values())
        return env

    def _create_provider(self, document: Mapping[str, Any]) -> LazyProvider:
        """Check the settings now, so that errors do not wait until a model is first needed."""

        async def open_configured() -> Registry:
            try:
                registry = await open_registry(
                    document,
                    models_directory=self.home / "models",
                    setup=format_command("crabtalkd setup", self.home),
                )
            except ProviderSettingsError as error:
                raise self._to_settings_error(error) from None
            self._add_secrets(registry.secrets)
            return registry

        provider = LazyProvider(open_configured, read_default_model(document))
        try:
            settings = read_provider_settings(document)
        except ProviderSettingsError as error:
            provider.problem = str(self._to_settings_error(error))
            log.error("%s", provider.problem)  # noqa: TRY400 - a sentence for a person
        else:
            self._add_secrets(entry.api_key for entry in settings)
        return provider

    def _to_settings_error(self, error: ProviderSettingsError) -> ProviderSettingsError:
        """Add the file to correct and the command that reloads it."""
        reload = format_command("crabtalkd reload", self.home)
        return ProviderSettingsError(
            f"{self.home / 'config.toml'}: {error}; mend it, then `{reload}`"
        )

    async def open(self) -> None:
        """Load the agents. Failures are listed in `problems`; they do not prevent the start."""
        try:
            if self._composite is not None:
                plugins, self._plugin_problems = await asyncio.to_thread(load_hooks)
                self._composite.add_hooks(plugins)
                self._migration_problems = await asyncio.to_thread(move_mcp_servers, self.home)
                self._port_files.watch()
            # Read again here, because move_mcp_servers may have changed the file.
            self._ignored_settings = self._describe_ignored_settings(
                await self.storage.read_config()
            )
            await self.skills.refresh()
            await self._load_shared_state()
        except StorageError as error:
            self._storage_error = str(error)
            log.error("agents cannot be loaded: %s", error)  # noqa: TRY400 - a sentence for a person
            # Another machine may correct shared storage: its password, schema or permissions.
            if self.fleet is not None or isinstance(error, StorageUnavailableError):
                self._retry_task = asyncio.ensure_future(self._retry_open())
        finally:
            self._opened.set()

    async def _load_shared_state(self) -> None:
        """Read agents and subscriptions, then recover turns. Raises StorageError."""
        await self._load_agents()
        await self.bus.load()
        if not self.runtime.agents and not self._broken_agents:
            await self.storage.save_agent(DEFAULT_AGENT)
            self.register(DEFAULT_AGENT)
        # Returns once recovered turns have their queue positions, before any new turn can start.
        await self.runtime.recover()

    async def _retry_open(self) -> None:
        """Retry until the shared state can be read."""
        pause = FIRST_RETRY_SECONDS
        while self._storage_error:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_RETRY_SECONDS)
            try:
                async with self._change_lock:
                    await self._load_shared_state()
            except StorageError as error:
                self._storage_error = str(error)
            else:
                self._storage_error = ""
                self._retry_task = None
                log.info("storage is there, with %d agents", len(self.runtime.agents))

    async def wait_until_opened(self) -> Runtime:
        """Wait until `open` has tried to load the agents, then return the engine."""
        if not self._opened.is_set():
            await self._opened.wait()
        return self.runtime

    async def wait_until_ready(self) -> Runtime:
        """Wait until the agents are loaded. Raises UnavailableError while that is impossible."""
        await self.wait_until_opened()
        if self._retry_task is not None:
            raise UnavailableError(self._storage_error)
        return self.runtime

    async def load_new_agent(self, name: str) -> None:
        """Load an agent that another daemon may have just created."""
        if self.fleet is not None and name and name not in self.runtime.agents:
            agent = await self.storage.load_agent(name)
            if agent is not None:
                self.register(agent)

    async def reload_agents(self) -> None:
        """Read the agents again after another daemon changed them. Raises StorageError."""
        async with self._change_lock:
            await self._load_agents()

    @property
    def problems(self) -> list[str]:
        """What is wrong with the setup, one sentence each."""
        problems = [
            *self._broken_agents.values(),
            *self._plugin_problems,
            *self._migration_problems,
            *self.bus.problems,
        ]
        problems += [*self._ignored_settings, *self.skills.problems, *self._memory_pool.problems]
        problems += [
            f"the MCP server {owner.name} of {owner.agent} failed: {peer.error}"
            for owner, peer in self.mcp.list_states()
            if owner.agent and peer.status is PeerStatus.FAILED
        ]
        return problems + [text for text in (self.models.problem, self._storage_error) if text]

    async def reload(self) -> None:
        """Read configuration and agents again. Running turns are not affected.

        Raises StorageError, ConfigError or ProviderSettingsError when the configuration cannot be
        used or the agents cannot be read; then everything but the skills stays unchanged. If the
        subscriptions cannot be read, the old ones stay active and `problems` says so.
        """
        async with self._change_lock:
            document = await self.storage.read_config()
            # Also check settings that only apply at start, so that the next start does not fail.
            # Skip the address: the command line may have set another.
            parse_config(document, self.home / "config.toml", tcp="off")
            read_provider_settings(document)
            await self.skills.refresh()
            await self._load_agents()
            await self.bus.load()
            self._storage_error = ""
            self.policy.owners = Owners(read_owners(document), self.policy.owners.account)
            self.mcp.env = self._read_mcp_env(document)
            self.mcp.retry_failed()
            previous, self.models = self.models, self._create_provider(document)
            self.runtime.set_provider(self.models)
            self.models.preload_if_used(previous)
            self._ignored_settings = self._describe_ignored_settings(document)
        for sentence in self._ignored_settings:
            log.warning("%s", sentence)
        log.info("reloaded, with %d agents", len(self.runtime.agents))

    def _describe_ignored_settings(self, document: Mapping[str, Any]) -> list[str]:
        return describe_unknown_keys(find_unknown_keys(document), self.home / "config.toml")

    async def _load_agents(self) -> None:
        self._broken_agents = await self.runtime.load_agents()
        for sentence in self._broken_agents.values():
            log.error("%s", sentence)
        for agent in self.runtime.agents.values():
            self._mask_agent_secrets(agent)

    def register(self, agent: Agent) -> None:
        """Add an agent that was just stored, or replace the one with its name."""
        self._mask_agent_secrets(agent)
        self.runtime.register(agent)
        self._broken_agents.pop(agent.name, None)

    def unregister(self, name: str) -> None:
        self.runtime.unregister(name)
        self._broken_agents.pop(name, None)

    def _mask_agent_secrets(self, agent: Agent) -> None:
        """Keep the secrets of an agent's MCP servers out of the logs."""
        for server in agent.mcps:
            self._add_secrets([server.auth, *server.env.values()])

    def change_lock(self) -> asyncio.Lock:
        """The lock to hold while agents or configuration are read, changed and written."""
        return self._change_lock

    async def close(self) -> None:
        """Stop all turns and close everything. Stored data is not lost."""
        if self._retry_task is not None:
            self._retry_task.cancel()
        await self.bus.close()
        await self.runtime.close()
        if self.fleet is not None:
            await self.fleet.close()
        await self._port_files.close()
        await self.mcp.close()
        await self.index.close()
        await self._memory_pool.close()
        await self.storage.close()


def read_default_model(document: Mapping[str, Any]) -> str:
    """The model named in [daemon] or [llm]; empty if none is."""
    for section in ("daemon", "llm"):
        table = document.get(section)
        if isinstance(table, Mapping) and isinstance(model := table.get("model"), str) and model:
            return model
    return ""


def read_owners(document: Mapping[str, Any]) -> list[str]:
    """[daemon] owners: additional senders that count as the owner."""
    table = document.get("daemon")
    owners = table.get("owners", []) if isinstance(table, Mapping) else []
    return [sender for sender in owners if isinstance(sender, str) and sender]


def is_flush_enabled(document: Mapping[str, Any]) -> bool:
    """Whether writes are fsynced, so that they survive a power cut."""
    table = document.get("storage")
    return not isinstance(table, Mapping) or table.get("durability", "fsync") == "fsync"


def list_skill_roots(home: Path, document: Mapping[str, Any]) -> list[tuple[str, Path]]:
    """The directories searched for skills; the first match wins. Directories of other programs
    only if `external` in [skills] is true."""
    roots = [("local", home / "skills"), ("agents", Path.home() / ".agents" / "skills")]
    table = document.get("skills")
    if isinstance(table, Mapping) and table.get("external") is True:
        roots += [(name, Path.home() / f".{name}" / "skills") for name in ("claude", "codex")]
    return roots
