"""A fake daemon whose runs only ask for permission, when a test says so.

Socket, frames and messages are real. It sends the events that a test puts on its feed, and records
the replies.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apps.web.tests.gateway.device_client import DeviceClient, open_device
from apps.web.tests.gateway.web_gateway_world import pair_with_device, start_gateway, stop_gateway
from crabtalk.protocol import BadRequestError, NotFoundError, Server, wire
from crabtalk.transport import RunFiles, TransportLimits
from crabtalk_web.gateway import GatewayConfig, RelayCredentials, WebFolder, WebGateway
from crabtalk_web.relay import RelayConfig, RelayServer
from tests.scripted_server import open_listener

MODES = ("plan", "ask", "accept-edits", "auto")


def make_approval(call: str = "command: ls", **rest: Any) -> wire.ApprovalRequest:
    fields = {"agent": "crab", "tool": "bash", "cwd": "/w", "digest": "d1", "reason": "mode ask"}
    return wire.ApprovalRequest(**{**fields, "call": call, "requested_by": "user", **rest})


class WebApprovalDaemon(Server):
    def __init__(self, owners: tuple[str, ...] = ("user",)) -> None:
        self.owners = owners
        self.replies: list[wire.ReplyToAsk] = []
        self.modes: dict[tuple[str, str], str] = {}
        self.waiting: dict[str, wire.AgentEventMsg] = {}
        self.received_texts: list[str] = []
        self.features = ["keys", "attach", "records"]
        self.records: list[wire.ConversationRecord] = []
        self._feeds: list[asyncio.Queue[wire.AgentEventMsg]] = []
        self.replied_event = asyncio.Event()

    # ── What a test has it do ───────────────────────────────────────────────────────────────

    def emit(self, kind: int, run: str, sender: str = "user", **rest: Any) -> wire.AgentEventMsg:
        fields = {"agent": "crab", "sender": sender, "run_id": run, **rest}
        now = datetime.now(UTC).isoformat()
        message = wire.AgentEventMsg(kind=kind, timestamp=now, **fields)  # type: ignore[arg-type]
        for feed in self._feeds:
            feed.put_nowait(message)
        return message

    def add_record(self, sender: str = "user", **record: Any) -> None:
        """Append to the log of the one conversation that the gateway reads."""
        if sender == "user":
            position = len(self.records)
            self.records.append(wire.ConversationRecord(position=position, **record))

    def add_message(self, role: str, run: str, sender: str = "user", **rest: Any) -> None:
        now = datetime.now(UTC).isoformat()
        fields = {"role": role, "run_id": run, "timestamp": now, "id": len(self.records), **rest}
        self.add_record(sender, message=wire.ConversationMessage(**fields))

    def end_run(self, run: str, sender: str = "user") -> None:
        now = datetime.now(UTC).isoformat()
        reason = wire.STOP_REASON_COMPLETED
        end = wire.RunEndRecord(run_id=run, timestamp=now, agent="crab", stop_reason=reason)
        self.add_record(sender, run_end=end)
        self.emit(wire.DONE, run, sender, stop_reason=reason)

    def begin_run(self, run: str, sender: str = "user") -> None:
        self.add_message("user", run, sender, content="Do it")
        self.emit(wire.TURN_START, run, sender, content="Do it")
        self.call_tool(run, sender)

    def call_tool(self, run: str, sender: str = "user") -> None:
        """A step that calls a tool."""
        call = wire.ToolCallInfo(id=f"{run}-k", name="bash", arguments='{"command": "ls"}')
        self.add_message("assistant", run, sender, tool_calls=[call])
        self.emit(wire.TOOL_START, run, sender, tool_calls=[call])

    def ask_approval(
        self, run: str, ask_id: str, *approvals: wire.ApprovalRequest, sender: str = "user"
    ) -> None:
        questions = [
            wire.AskQuestion(
                question=one.call,
                header=one.tool,
                options=[
                    wire.AskOption(label=label)
                    for label in ("Allow", "Deny", *(["Always"] if one.always else []))
                ],
                approval=one,
            )
            for one in approvals
        ]
        ask = wire.AskUserEvent(ask_id=ask_id, questions=questions)
        self.waiting[ask_id] = self.emit(wire.ASK_USER, run, sender, ask=ask)

    def finish_run(self, run: str, sender: str = "user", output: str = "done") -> None:
        self.emit(wire.TOOL_RESULT, run, sender, call_id=f"{run}-k", tool_output=output)
        self.emit(wire.TOOLS_COMPLETE, run, sender)
        self.add_message("tool", run, sender, content=output, call_id=f"{run}-k")
        self.end_run(run, sender)

    async def wait_for_reply(self, count: int = 1) -> wire.ReplyToAsk:
        async with asyncio.timeout(20):
            while len(self.replies) < count:
                self.replied_event.clear()
                await self.replied_event.wait()
        return self.replies[count - 1]

    # ── What it answers ─────────────────────────────────────────────────────────────────────

    async def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        feed: asyncio.Queue[wire.AgentEventMsg] = asyncio.Queue()
        for message in self.waiting.values():
            feed.put_nowait(message)
        self._feeds.append(feed)
        try:
            while True:
                yield await feed.get()
        finally:
            self._feeds.remove(feed)

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        self.received_texts.append(request.content)
        run = f"stream-{len(self.received_texts)}"
        self.add_message("user", run, content=request.content, key=request.key)
        self.emit(wire.TURN_START, run, content=request.content)
        yield wire.StreamEvent(start=wire.StreamStart(agent=request.agent, run_id=run))
        self.end_run(run)
        yield wire.StreamEvent(end=wire.StreamEnd(agent=request.agent))

    async def reply_to_ask(self, request: wire.ReplyToAsk) -> None:
        message = self.waiting.get(request.ask_id)
        if message is None or message.sender != request.sender:
            raise NotFoundError("nothing waits for this answer")
        is_for_owner = any(one.approval.for_owner for one in message.ask.questions)
        if is_for_owner and not request.as_owner:
            raise NotFoundError("only the owner may answer")
        del self.waiting[request.ask_id]
        self.replies.append(request)
        self.replied_event.set()

    async def set_mode(self, request: wire.SetModeMsg) -> wire.ModeInfo:
        pair = (request.agent, request.sender or "user")
        if request.HasField("mode"):
            if request.mode and request.mode not in MODES:
                raise BadRequestError("no such mode")
            self.modes[pair] = request.mode
            mode = request.mode or "ask"
            self.emit(wire.MODE_CHANGED, "", pair[1], content=mode)
        found = self.modes.get(pair, "")
        return wire.ModeInfo(mode=found or "ask", is_set=bool(found))

    async def explain_agent(self, request: wire.ExplainAgentMsg) -> wire.AgentPermissions:
        origin = "owner" if request.sender in self.owners else "stranger"
        return wire.AgentPermissions(agent=request.agent, sender=request.sender, origin=origin)

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        return wire.AgentList(agents=[wire.AgentInfo(name="crab")])

    async def list_conversations(self, request: wire.ListConversationsMsg) -> wire.ConversationList:
        return wire.ConversationList()

    async def list_active_conversations(
        self, request: wire.ListActiveConversationsMsg
    ) -> wire.ActiveConversationList:
        return wire.ActiveConversationList()

    async def list_models(self, request: wire.ListModelsMsg) -> wire.ModelList:
        return wire.ModelList()

    async def list_skills(self, request: wire.ListSkillsMsg) -> wire.SkillList:
        return wire.SkillList()

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(features=self.features)

    async def list_messages(self, request: wire.ListMessagesMsg) -> wire.MessagePage:
        raise NotFoundError("there is no such conversation")

    async def list_records(self, request: wire.ListRecordsMsg) -> wire.RecordPage:
        if not self.records:
            raise NotFoundError("there is no such conversation")
        found = self.records[request.position :]
        return wire.RecordPage(records=found, next_position=len(self.records), log_id="log")

    async def attach(self, request: wire.AttachMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        yield wire.StreamEvent(start=wire.StreamStart(agent=request.agent, run_id=request.run_id))
        await asyncio.Event().wait()

    async def kill(self, request: wire.KillMsg) -> None:
        pass


@dataclass
class ApprovalWorld:
    """`credentials` belong to the machine of the gateway."""

    daemon: WebApprovalDaemon
    relay: RelayServer
    phone: DeviceClient
    credentials: RelayCredentials
    home: Path
    config: GatewayConfig
    gateway: WebGateway | None = None
    _task: asyncio.Task[None] | None = None

    async def start_gateway(self) -> None:
        self.gateway, self._task = await start_gateway(self.home, self.credentials, self.config)

    async def stop_gateway(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            await stop_gateway(task)


@asynccontextmanager
async def open_approval_world(
    path: Path,
    daemon: WebApprovalDaemon | None = None,
    *,
    static: Path | None = None,
    **config: Any,
) -> AsyncIterator[ApprovalWorld]:
    """A relay, a gateway and a phone, connected to such a daemon."""
    daemon = daemon or WebApprovalDaemon()
    home, work = path / "home", path / "work"
    (home / "run").mkdir(mode=0o700, parents=True)
    work.mkdir()
    settings = GatewayConfig(**{"cwd": str(work), **config})
    async with AsyncExitStack() as stack:
        socket = RunFiles.for_home(home).socket_path
        await stack.enter_async_context(
            open_listener(daemon, socket, limits=TransportLimits(drain_timeout=0.1))
        )
        relay = await stack.enter_async_context(
            RelayServer(RelayConfig(path / "relay", port=0, durability="os", static=static))
        )
        device = await stack.enter_async_context(open_device(relay.url))
        credentials = await pair_with_device(device, relay.url)
        WebFolder(home).prepare()
        credentials.save(WebFolder(home).credentials_file)
        world = ApprovalWorld(daemon, relay, device, credentials, home, settings)
        try:
            await world.start_gateway()
            await device.connect()
            yield world
        finally:
            await world.stop_gateway()
