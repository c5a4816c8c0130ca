"""A daemon in the test process. Only the model is scripted; files, engine and socket are real.

    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        events = await collect_events(client.stream("crab", "!say hello"))

Tools are coroutine functions of the test, by name. An existing home is used as it is, so a second
`run_daemon` with the same path and model is a restart. If DATABASE is set, conversations and agents
are stored there.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from crabtalk.client import Client, ServerError, connect
from crabtalk.client.events import Event
from crabtalk.daemon.config.settings import load_config
from crabtalk.daemon.daemon import Daemon
from crabtalk.daemon.events.feed import FeedLimits
from crabtalk.daemon.events.run_queue import EventLimits
from crabtalk.daemon.handlers.daemon_server import RETURN_SECONDS, DaemonServer
from crabtalk.daemon.process.storage_factory import open_storage
from crabtalk.mcp import McpLimits
from crabtalk.model import Tool
from crabtalk.protocol import wire
from crabtalk.runtime import Hook, RuntimeLimits, ToolDispatch
from crabtalk.storage import Storage
from crabtalk.storage.postgres import PostgresStorage
from crabtalk.transport import Listener, ListenOptions, RunFiles, listen_unix
from crabtalk.transport import TransportLimits as TransportLimits
from tests.model_server import ModelServer, model_server
from tests.postgres import execute_sql
from tests.scripted_server import RawPeer

# The longest time that a test waits for anything, in seconds.
PATIENCE = 30
AGENTS = {"crab": 'prompt = "You are crab."\n', "twin": 'prompt = "You are twin."\n'}

# One model, without retries.
CONFIG = '[llm]\nbase_url = "{url}"\nmodel = "scripted"\nmax_retries = 0\n'

# The url of the database to use; empty for files.
DATABASE = ""
LOG_LINES = """
SELECT handle, body FROM entries JOIN conversations ON conversation = conversations.id
ORDER BY handle COLLATE "C", seq
"""

ToolFunction = Callable[[ToolDispatch], Awaitable[str]]
T = TypeVar("T")


class FunctionTools(Hook):
    """Offers coroutine functions of the test as tools."""

    def __init__(self, **tools: ToolFunction) -> None:
        self._tools = tools

    def schema(self) -> list[Tool]:
        return [Tool(name, f"does {name}") for name in self._tools]

    def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
        function = self._tools.get(call.name)
        return function(call) if function is not None else None


class InProcessDaemon:
    """A running daemon and its model."""

    def __init__(self, home: Path, model: ModelServer, daemon: Daemon, listener: Listener) -> None:
        self.home = home
        self.model = model
        self.daemon = daemon
        self.listener = listener

    def client(self) -> Client:
        return connect(home=self.home, timeout=PATIENCE)

    async def connect_raw(self) -> RawPeer:
        return await RawPeer.connect_unix(RunFiles.for_home(self.home).socket_path)

    def write_config(self, text: str) -> None:
        (self.home / "config.toml").write_text(text)

    def agent_file(self, name: str) -> "Path | AgentRow":
        return AgentRow(name) if DATABASE else self.home / "agents" / f"{name}.toml"

    @property
    def sessions_directory(self) -> Path:
        """The directory of the logs; a fresh export if they are in a database."""
        return self.home.with_name("exported") if DATABASE else self.home / "sessions"

    @property
    def log_paths(self) -> list[Path]:
        """The logs of all conversations. Those in a database are exported to files."""
        if DATABASE:
            export_logs(self.sessions_directory)
        return sorted(self.sessions_directory.glob("*.jsonl"))

    def read_log(self) -> list[dict[str, Any]]:
        """The parsed lines of the only log there is."""
        (path,) = self.log_paths
        return [json.loads(line) for line in path.read_text().splitlines()]

    def read_messages(self) -> list[dict[str, Any]]:
        """The messages in that log."""
        return [line["message"] for line in self.read_log() if line["kind"] == "message"]


@asynccontextmanager
async def run_daemon(
    path: Path,
    model: ModelServer | None = None,
    *,
    summary: str = "",
    config: str = CONFIG,
    agents: Mapping[str, str] = AGENTS,
    tools: Mapping[str, ToolFunction] | None = None,
    hooks: Mapping[str, Hook] | None = None,
    storage: Storage | None = None,
    limits: RuntimeLimits | None = None,
    feed_limits: FeedLimits | None = None,
    event_limits: EventLimits | None = None,
    mcp_limits: McpLimits | None = None,
    transport_limits: TransportLimits | None = None,
    return_seconds: float = RETURN_SECONDS,
    server: type[DaemonServer] = DaemonServer,
) -> AsyncIterator[InProcessDaemon]:
    """Run a daemon with a home in `path`. A new home gets files for `agents` and `config`.

    With `hooks`, agents have all built-in tools and those hooks; otherwise only `tools`. Without a
    `model` it starts one, which compacts anything into `summary`. {url} in the config is replaced
    by the model's url.
    """
    home = path / "home"
    async with AsyncExitStack() as stack:
        if model is None:
            model = await stack.enter_async_context(model_server(summary=summary))
        is_new = not home.exists()
        prepare_home(home, {} if DATABASE else agents, config.replace("{url}", model.url))
        settings = load_config(home / "config.toml")
        fleet = None
        if storage is None:
            storage, fleet = open_storage(home, replace(settings, flush=False))
        if isinstance(storage, PostgresStorage) and is_new:
            await install_agents(storage, agents)
        daemon = Daemon(
            home,
            storage,
            settings.document,
            limits=limits,
            feed_limits=feed_limits,
            event_limits=event_limits,
            # Wait for MCP servers even on a busy machine.
            mcp_limits=mcp_limits or McpLimits(mcp_wait_seconds=PATIENCE),
            hook=FunctionTools(**tools or {}) if hooks is None else None,
            hooks=hooks or {},
            fleet=fleet,
        )
        listener = Listener(
            server(daemon, return_seconds=return_seconds),
            transport_limits or TransportLimits(drain_timeout=1),
        )
        listener.open(listen_unix(RunFiles.for_home(home).socket_path), ListenOptions("unix"))
        try:
            await daemon.open()
            yield InProcessDaemon(home, model, daemon, listener)
        finally:
            async with asyncio.timeout(PATIENCE):
                await listener.close()
                await daemon.close()


async def install_agents(storage: PostgresStorage, agents: Mapping[str, str]) -> None:
    await storage.open()
    for name, text in agents.items():
        await storage.agent_table.put(name, text)


def export_logs(directory: Path) -> None:
    """Export the logs of all conversations, replacing an earlier export."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for row in execute_sql(DATABASE, LOG_LINES):
        with (directory / f"{row['handle']}.jsonl").open("a") as file:
            file.write(f"{row['body']}\n")


class AgentRow:
    """An agent's text in the database, with the methods of a Path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exists(self) -> bool:
        return bool(self._rows("SELECT body FROM agents WHERE name = $1"))

    def read_text(self) -> str:
        (row,) = self._rows("SELECT body FROM agents WHERE name = $1")
        return str(row["body"])

    def write_text(self, text: str) -> None:
        self._rows(
            "INSERT INTO agents VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET body = $2", text
        )

    def unlink(self) -> None:
        self._rows("DELETE FROM agents WHERE name = $1")

    def _rows(self, statement: str, *values: str) -> list[dict[str, Any]]:
        return execute_sql(DATABASE, statement, values=(self._name, *values))


def prepare_home(home: Path, agents: Mapping[str, str], config: str) -> None:
    if not home.exists():
        for directory in (home, home / "agents", home / "run"):
            directory.mkdir(0o700)
        database = f'\n[storage]\nurl = "{DATABASE}"\n' if DATABASE else ""
        (home / "config.toml").write_text(config + database)
        for name, text in agents.items():
            (home / "agents" / f"{name}.toml").write_text(text)


class FeedFollower:
    """A subscriber of the feed, with the events it received."""

    def __init__(self) -> None:
        self.events: list[wire.AgentEventMsg] = []

    async def follow(self, feed: AsyncGenerator[wire.AgentEventMsg, None]) -> None:
        async for event in feed:
            self.events.append(event)

    async def wait_until_done(self, runs: int = 1) -> list[wire.AgentEventMsg]:
        """The events so far, after `runs` runs are over."""
        await wait_until(lambda: sum(event.kind == wire.DONE for event in self.events) >= runs)
        return self.events


@asynccontextmanager
async def follow_feed(
    daemon: InProcessDaemon,
    *,
    agent: str | None = None,
    sender: str | None = None,
    all_kinds: bool = False,
) -> AsyncIterator[FeedFollower]:
    """Subscribe to the feed for the duration of the block."""
    follower = FeedFollower()
    others = len(daemon.daemon.feed)
    async with daemon.client() as client:
        feed = client.subscribe_events(agent=agent, sender=sender, all_kinds=all_kinds)
        task = asyncio.ensure_future(follower.follow(feed))
        await wait_until(lambda: len(daemon.daemon.feed) > others)
        try:
            yield follower
        finally:
            task.cancel()
            await asyncio.wait([task])


# ── Results ────────────────────────────────────────────────────────────────────────────────────


async def collect_events(stream: AsyncGenerator[T, None]) -> list[T]:
    """All events of a stream, up to its end."""
    async with asyncio.timeout(PATIENCE), aclosing(stream):
        return [event async for event in stream]


async def wait_for_event(stream: AsyncGenerator[Any, None], kind: type[T]) -> T:
    """The next event of a kind; skips those before it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            event = await anext(stream)
            if isinstance(event, kind):
                return event


async def wait_with_timeout(work: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await work


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition in this process holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def expect_error_code(request: Awaitable[Any]) -> int:
    """The code of the error that answers a request."""
    with pytest.raises(ServerError) as caught:
        await wait_with_timeout(request)
    assert caught.value.message.strip(), "an error says why"
    return caught.value.code


ToolCalls = Sequence[tuple[str, Mapping[str, Any] | str]]  # names and arguments


def script_tool_calls(*steps: ToolCalls) -> str:
    """A model script that makes these calls, step after step, and then says done."""
    scripts = [
        "\n".join(
            f"!tool {name} {arguments if isinstance(arguments, str) else json.dumps(arguments)}"
            for name, arguments in step
        )
        for step in steps
    ]
    return "\n!then\n".join([*scripts, "!say done"])


async def run_tool_calls(
    client: Client, agent: str, *steps: ToolCalls, **options: Any
) -> list[wire.ToolResultEvent]:
    """Have an agent make these calls in one turn. Returns the results in call order."""
    return select_tool_results(
        await collect_events(client.stream(agent, script_tool_calls(*steps), **options))
    )


def select_tool_results(events: list[Event]) -> list[wire.ToolResultEvent]:
    """The tool results of a stream in call order, which the ids of the scripted model have."""
    results = [event for event in events if isinstance(event, wire.ToolResultEvent)]
    return sorted(results, key=lambda event: int(event.call_id.removeprefix("call_")))


def collect_text(events: list[Event]) -> str:
    """The whole text of a stream."""
    return "".join(event.content for event in events if isinstance(event, wire.StreamChunk))


def get_stream_end(events: list[Event]) -> wire.StreamEnd:
    end = events[-1]
    assert isinstance(end, wire.StreamEnd), end
    return end


def list_request_messages(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each message that a model got."""
    return [(message["role"], message.get("content") or "") for message in request["messages"]]


def list_framing_messages(request: dict[str, Any]) -> list[str]:
    """The messages that say which agent speaks."""
    return [
        text
        for role, text in list_request_messages(request)
        if role == "user" and "<from agent=" in text
    ]


async def read_conversation(client: Client, agent: str, sender: str = "") -> list[tuple[str, str]]:
    """Role and text of all messages of a conversation."""
    page = await client.list_messages(agent, sender=sender)
    return [(message.role, message.content) for message in page.messages]
