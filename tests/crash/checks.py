"""Checks after a crash, made from the files, the wire and the model's requests.

They do not use the code under test: the log is parsed as plain JSON, and the history is built
independently.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from crabtalk.client import Client, ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk.storage import Pair, make_log_name

# Each message begins with a token on its own line: `#sender/7` is the seventh turn, `#sender/7+1`
# its first steering message.
TOKEN = re.compile(r"#([\w-]+/\d+(?:\+\d+)?)(?=\n|\Z)")
INTERRUPTED = "interrupted"


class SeenMessage(NamedTuple):
    """A message, reduced to the fields that log, wire and model requests have in common."""

    role: str
    text: str
    calls: tuple[tuple[str, str, str], ...] = ()  # id, name, arguments
    call_id: str = ""
    agent: str = ""

    @property
    def token(self) -> str:
        match = TOKEN.match(self.text) if self.role == "user" else None
        return match[1] if match else ""


def normalize_result(role: str, text: str) -> str:
    """Ignores the exact wording of an interrupted call's result."""
    return INTERRUPTED if role == "tool" and text.startswith(INTERRUPTED) else text


# ── What a client saw ──────────────────────────────────────────────────────────────────────────


@dataclass
class ClientTurn:
    """A turn as its client sees it: the content, and the events until the connection was lost."""

    content: str
    guest: str = ""
    step: int = 0  # order of sending; the same for turns sent at once
    events: list[Event] = field(default_factory=list)
    steers: list[str] = field(default_factory=list)  # acknowledged ones
    steer_attempts: int = 0
    answer: str | None = None  # of a turn that used `send`
    is_over: bool = False
    is_withdrawn: bool = False  # its client left, or the daemon was asked to stop
    error: str = ""

    @property
    def token(self) -> str:
        return self.content.partition("\n")[0][1:]


def collect_seen_messages(turn: ClientTurn) -> tuple[list[SeenMessage], int, str]:
    """The complete messages of a stream, how many of them must be stored, and the text of the next.

    All messages of a step are stored before anything of the next step is streamed.
    """
    messages = [SeenMessage("user", turn.content)]
    stored = 0
    text = ""
    calls: Iterable[wire.ToolCallInfo] = ()
    results: dict[str, str] = {}
    for event in turn.events:
        match event:
            case wire.StreamStart():
                pass  # the user's message is stored
            case wire.StreamChunk():
                text += event.content
            case wire.ToolStartEvent() if not event.early:
                calls = event.calls
                results = {}
                made = tuple((call.id, call.name, call.arguments) for call in calls)
                messages.append(SeenMessage("assistant", text, made))
                text = ""
            case wire.ToolResultEvent():
                results[event.call_id] = event.output
            case wire.ToolsCompleteEvent():
                stored = len(messages)
                messages += [SeenMessage("tool", results[c.id], call_id=c.id) for c in calls]
                continue
            case wire.UserSteeredEvent():
                if text:
                    messages.append(SeenMessage("assistant", text, agent=turn.guest))
                text = ""
                messages.append(SeenMessage("user", event.content))
            case wire.StreamEnd() if text and event.stop_reason == wire.STOP_REASON_COMPLETED:
                messages.append(SeenMessage("assistant", text, agent=turn.guest))
                text = ""
        stored = len(messages)
    return messages, stored, text


def check_turn(turn: ClientTurn, stored: Sequence[SeenMessage]) -> None:
    """`stored` are the turn's messages in the log, from the user's message on."""
    seen, least, partial = collect_seen_messages(turn)
    if turn.answer is not None:
        assert stored[0].text == turn.content
        assert (stored[-1].role, stored[-1].text, stored[-1].agent) == (
            "assistant",
            turn.answer,
            turn.guest,
        )
    elif turn.is_over:
        assert list(stored) == seen
    elif stored or not turn.is_withdrawn:
        # Steers that the agent had not read at the kill come after the other messages.
        stored = [m for m in stored if "+" not in m.token or m in seen]
        assert len(stored) >= least, f"{least} messages were seen, and {len(stored)} are stored"
        assert list(stored[: len(seen)]) == seen[: len(stored)]
        if partial and len(stored) > len(seen):
            following = stored[len(seen)]
            assert following.role == "assistant"
            assert following.text.startswith(partial)


# ── What the log has ───────────────────────────────────────────────────────────────────────────


class SeenMarker(NamedTuple):
    name: str
    summary: str
    end_id: int


@dataclass
class ParsedLog:
    messages: list[SeenMessage] = field(default_factory=list)
    markers: list[SeenMarker] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)  # runs closed as interrupted
    data: bytes = b""  # the complete lines
    torn: bytes = b""  # an incomplete line after them

    def split_turns(self) -> list[list[SeenMessage]]:
        """The messages, grouped by turn."""
        turns: list[list[SeenMessage]] = []
        for message in self.messages:
            if message.token and "+" not in message.token:
                turns.append([])
            turns[-1].append(message)
        return turns

    @property
    def ends_in_calls(self) -> bool:
        """Whether the log ends in calls without results."""
        last = complete_history(self.messages)[-1:]
        return bool(last) and last[0].text == INTERRUPTED

    def history(self, end: int) -> list[SeenMessage]:
        """The history that the model gets when `end` messages are stored."""
        markers = [marker for marker in self.markers if marker.end_id < end]
        start = markers[-1].end_id if markers else 0
        summary = [SeenMessage("user", markers[-1].summary)] if markers else []
        return summary + complete_history(self.messages[start:end])


def log_path(home: Path, pair: Pair) -> Path:
    return home / "sessions" / f"{make_log_name(pair)}.jsonl"


def read_log(path: Path, pair: Pair) -> ParsedLog:
    """Parses each line; ids must count up from 0, and markers must be at their `end_id`."""
    data = path.read_bytes() if path.exists() else b""
    end = data.rfind(b"\n") + 1
    log = ParsedLog(data=data[:end], torn=data[end:])
    for number, line in enumerate(log.data.split(b"\n")[:-1]):
        record = json.loads(line)
        if number == 0:
            assert record["kind"] == "meta"
            assert (record["agent"], record["created_by"]) == pair
        match record["kind"]:
            case "message":
                assert record["id"] == len(log.messages)
                log.messages.append(from_log(record["message"]))
            case "compact":
                assert record["end_id"] == len(log.messages)
                log.markers.append(
                    SeenMarker(record["archive_name"], record["summary"], record["end_id"])
                )
            case "event":
                if record["data"].get("stop_reason") == "interrupted":
                    log.interrupted.append(record["run"])
            case kind:
                assert kind == "meta"
    assert len(set(log.interrupted)) == len(log.interrupted)  # each once
    assert not path.with_suffix(".damaged").exists()
    return log


def from_log(message: dict[str, Any]) -> SeenMessage:
    calls = [(c["id"], c["name"], c["arguments"]) for c in message.get("tool_calls", ())]
    return SeenMessage(
        message["role"],
        normalize_result(message["role"], message.get("text", "")),
        tuple(calls),
        message.get("call_id", ""),
        message.get("agent", ""),
    )


def complete_history(messages: Iterable[SeenMessage]) -> list[SeenMessage]:
    """As a strict vendor requires: each call has a result; guests' messages are in a tag."""
    complete: list[SeenMessage] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            waiting.remove(message.call_id)
        else:
            complete += [SeenMessage("tool", INTERRUPTED, call_id=call_id) for call_id in waiting]
            waiting = [call_id for call_id, _, _ in message.calls]
        if message.agent:
            text = f'<from agent="{message.agent}">\n{message.text}\n</from>'
            message = SeenMessage("assistant", text)
        complete.append(message)
    return complete + [SeenMessage("tool", INTERRUPTED, call_id=call_id) for call_id in waiting]


# ── What the model saw ─────────────────────────────────────────────────────────────────────────


def read_request_messages(request: dict[str, Any]) -> list[SeenMessage]:
    """The messages of a request, without the system prompt."""
    messages: list[SeenMessage] = []
    for message in request["messages"]:
        if message["role"] == "system":
            continue
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", ())
        ]
        text = normalize_result(message["role"], message.get("content") or "")
        messages.append(
            SeenMessage(
                message["role"], text, tuple(calls), call_id=message.get("tool_call_id", "")
            )
        )
    return messages


def check_strict(messages: Iterable[SeenMessage]) -> None:
    """Each call has one result, right after its message; there are no other results."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.call_id in waiting, f"no call for {message}"
            waiting.remove(message.call_id)
        else:
            assert not waiting, f"{waiting} have no result"
            waiting = [call_id for call_id, _, _ in message.calls]
    assert not waiting, f"{waiting} have no result"


def is_summary(request: dict[str, Any]) -> bool:
    return "You compact conversations" in str(request["messages"][0]["content"])


def check_request(request: dict[str, Any], log: ParsedLog) -> None:
    """A request has exactly the stored messages up to that point, in order."""
    if is_summary(request):
        tokens = set(TOKEN.findall(request["messages"][-1]["content"]))
        assert tokens <= {message.token for message in log.messages}
        return
    messages = read_request_messages(request)
    check_strict(messages)
    summaries = {marker.summary for marker in log.markers}
    history = [m for m in messages if m.role != "user" or m.token or m.text in summaries]
    end = len(log.messages)
    while end and not is_same_message(log.messages[end - 1], history[-1]):
        end -= 1
    assert end, f"{history[-1]} was not stored before the model was asked"
    assert history == log.history(end)


def is_same_message(stored: SeenMessage, sent: SeenMessage) -> bool:
    return (stored.role, stored.text, stored.call_id) == (sent.role, sent.text, sent.call_id)


# ── What the wire says ─────────────────────────────────────────────────────────────────────────


async def check_wire(client: Client, pair: Pair, log: ParsedLog) -> None:
    """Messages, archives, history and listing agree with the log."""
    agent, sender = pair
    if not log.data:
        assert await is_empty_conversation(client, pair)
        return
    assert await list_wire_messages(client, pair) == log.messages
    archives = (await client.list_archives(agent, sender=sender)).archives
    assert [SeenMarker(a.name, a.summary, a.end_id) for a in archives] == log.markers
    ends = [marker.end_id for marker in log.markers]
    assert [archive.first_id for archive in archives] == [0, *ends][: len(ends)]
    assert [m.name for m in log.markers] == [
        f"{make_log_name(pair)}-{number}" for number in range(1, len(ends) + 1)
    ]
    (info,) = (await client.list_conversations(agent, sender)).conversations
    assert info.message_count == len(log.messages)
    history = await client.get_conversation_history(info.file_path)
    start = ends[-1] if ends else 0
    summary = [("user", log.markers[-1].summary)] if ends else []
    following = [(m.role, m.text) for m in log.messages[start:] if m.role != "tool"]
    assert [(m.role, m.content) for m in history.messages] == summary + following


async def is_empty_conversation(client: Client, pair: Pair) -> bool:
    """Whether there is no such conversation, or no message in it."""
    try:
        page = await client.list_messages(pair.agent, sender=pair.sender)
    except ServerError as error:
        return error.code == 404
    return not page.messages


async def list_wire_messages(client: Client, pair: Pair) -> list[SeenMessage]:
    """All messages of a conversation, read page by page from the daemon."""
    messages: list[SeenMessage] = []
    offset: int | None = 0
    while offset is not None:
        page = await client.list_messages(pair.agent, sender=pair.sender, offset=offset, limit=100)
        assert [message.id for message in page.messages] == list(
            range(len(messages), len(messages) + len(page.messages))
        )
        messages += [from_wire(message) for message in page.messages]
        offset = page.next_offset if page.HasField("next_offset") else None
    assert page.total == len(messages)
    return messages


def from_wire(message: wire.ConversationMessage) -> SeenMessage:
    calls = tuple((call.id, call.name, call.arguments) for call in message.tool_calls)
    text = normalize_result(message.role, message.content)
    return SeenMessage(message.role, text, calls, message.call_id, message.agent)
