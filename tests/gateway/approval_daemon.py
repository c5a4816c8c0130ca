"""A daemon that asks for approvals as scripted, and records all requests.

    async with run_approval_daemon(home) as daemon:
        daemon.asks.append(make_ask_event(make_approval(call="ls")))

Its socket, frames and errors are real. A turn asks its questions, waits for a reply to each of
them, and ends. Turns go on when the client disconnects, as detached ones do.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from crabtalk.protocol import NotFoundError, Server, wire
from crabtalk.transport import RunFiles, TransportLimits
from tests.scripted_server import open_listener

ASK_ID = "ask-1"
LABELS = ("Allow", "Deny", "Always")


def make_approval(
    call: str = "rm -rf __init__.py *build*",
    *,
    question: str = "",
    env: Mapping[str, str] | None = None,
    always: str = "bash(rm:*)",
    for_owner: bool = False,
    labels: tuple[str, ...] = LABELS,
) -> wire.AskQuestion:
    request = wire.ApprovalRequest(
        agent="crab",
        tool="bash",
        call=call,
        cwd="/srv/__work__",
        env=env or {},
        always=always,
        digest="00" * 32,
        requested_by="pg:7",
        for_owner=for_owner,
        reason="the mode is ask",
    )
    return wire.AskQuestion(
        question=question or f"May crab call bash?\n{call}",
        header="bash",
        options=[wire.AskOption(label=label) for label in labels],
        approval=request,
    )


def make_ask_event(*questions: wire.AskQuestion, ask: str = ASK_ID) -> wire.AskUserEvent:
    return wire.AskUserEvent(ask_id=ask, questions=questions)


class ScriptedApprovalDaemon(Server):
    def __init__(self) -> None:
        self.asks: list[wire.AskUserEvent] = []  # the questions of each turn
        self.turns: list[wire.StreamMsg] = []
        self.replies: list[wire.ReplyToAsk] = []
        self.steered_texts: list[str] = []
        self.killed_agents: list[str] = []
        self.modes: dict[tuple[str, str], str] = {}
        self.end_turns = asyncio.Event()  # ends turns whose questions are not answered
        self._answer_events: dict[str, asyncio.Event] = {}

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(
            protocol_version=request.protocol_version, features=["keys", "attach"]
        )

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        return wire.AgentList(agents=[wire.AgentInfo(name=n) for n in ("crab", "guarded", "twin")])

    async def list_skills(self, request: wire.ListSkillsMsg) -> wire.SkillList:
        return wire.SkillList()

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        """A repeated key is the same turn, streamed from its beginning."""
        if not any(turn.key == request.key for turn in self.turns):
            self.turns.append(request)
            for ask in self.asks:
                self._answer_events[ask.ask_id] = asyncio.Event()
        yield wire.StreamEvent(start=wire.StreamStart(agent=request.agent))
        for ask in self.asks:
            yield wire.StreamEvent(ask_user=ask)
            await self._wait_for_reply(ask.ask_id)
        yield wire.StreamEvent(tools_complete=wire.ToolsCompleteEvent())
        yield wire.StreamEvent(chunk=wire.StreamChunk(content="done"))
        yield wire.StreamEvent(end=wire.StreamEnd(agent=request.agent))

    async def _wait_for_reply(self, ask: str) -> None:
        waits = [
            asyncio.ensure_future(item.wait())
            for item in (self._answer_events[ask], self.end_turns)
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def reply_to_ask(self, request: wire.ReplyToAsk) -> None:
        if request.ask_id not in self._answer_events:
            raise NotFoundError("no turn asks that; list the questions")
        self.replies.append(request)
        self._answer_events[request.ask_id].set()

    async def steer_session(self, request: wire.SteerSessionMsg) -> None:
        self.steered_texts.append(request.content)

    async def kill(self, request: wire.KillMsg) -> None:
        self.killed_agents.append(request.agent)
        self.end_turns.set()

    async def set_mode(self, request: wire.SetModeMsg) -> wire.ModeInfo:
        pair = (request.agent, request.sender)
        if request.HasField("mode"):
            self.modes[pair] = request.mode
        mode = self.modes.get(pair, "")
        return wire.ModeInfo(mode=mode or "ask", is_set=bool(mode))


@asynccontextmanager
async def run_approval_daemon(home: Path) -> AsyncIterator[ScriptedApprovalDaemon]:
    (home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    daemon = ScriptedApprovalDaemon()
    async with open_listener(
        daemon, RunFiles.for_home(home).socket_path, limits=TransportLimits(drain_timeout=0.1)
    ):
        yield daemon
