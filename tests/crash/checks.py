"""What must hold after a crash, read from the files, from the wire, and from what the model saw.

Nothing here uses the code that wrote them: the log is plain JSON, the history is put together anew.
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

# Whatever is said begins with a line of its own, so that it can be found again: `#sender/7` is the
# seventh turn, `#sender/7+1` what was said into it.
TOKEN = re.compile(r"#([\w-]+/\d+(?:\+\d+)?)(?=\n|\Z)")
INTERRUPTED = "interrupted"


class SeenMessage(NamedTuple):
    """A message, as far as all who know it agree on it."""

    role: str
    text: str
    calls: tuple[tuple[str, str, str], ...] = ()  # id, name, arguments
    call_id: str = ""
    agent: str = ""

    @property
    def token(self) -> str:
        found = TOKEN.match(self.text) if self.role == "user" else None
        return found[1] if found else ""


def normalize_result(role: str, text: str) -> str:
    """How a call is said to be interrupted matters to nobody."""
    return INTERRUPTED if role == "tool" and text.startswith(INTERRUPTED) else text


# ── What a client saw ──────────────────────────────────────────────────────────────────────────


@dataclass
class ClientTurn:
    """A turn from the outside: what was asked for, and what came of it until the connection was
    gone."""

    said: str
    guest: str = ""
    step: int = 0  # in the order of asking; the same for those asked for at once
    events: list[Event] = field(default_factory=list)
    steers: list[str] = field(default_factory=list)  # acknowledged
    steer_attempts: int = 0  # how often it was tried
    answer: str | None = None  # of one that was sent rather than streamed
    is_over: bool = False
    is_taken_back: bool = False  # its client left, or the daemon was asked to stop
    error: str = ""

    @property
    def token(self) -> str:
        return self.said.partition("\n")[0][1:]


def collect_seen_messages(turn: ClientTurn) -> tuple[list[SeenMessage], int, str]:
    """Messages that were streamed whole, how many of them must be kept, and the words of the next.

    All of a step is kept before anything of the next is streamed.
    """
    messages = [SeenMessage("user", turn.said)]
    kept = 0
    text = ""
    calls: Iterable[wire.ToolCallInfo] = ()
    results: dict[str, str] = {}
    for event in turn.events:
        match event:
            case wire.StreamStart():
                pass  # what was said is kept
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
                kept = len(messages)
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
        kept = len(messages)
    return messages, kept, text


def check_turn(turn: ClientTurn, kept: Sequence[SeenMessage]) -> None:
    """`kept` is what the log has of it, from what the user said on."""
    whole, least, begun = collect_seen_messages(turn)
    if turn.answer is not None:
        assert kept[0].text == turn.said
        assert (kept[-1].role, kept[-1].text, kept[-1].agent) == (
            "assistant",
            turn.answer,
            turn.guest,
        )
    elif turn.is_over:
        assert list(kept) == whole
    elif kept or not turn.is_taken_back:
        # Steers that were not read when it was cut off stand behind what was kept by then.
        kept = [said for said in kept if "+" not in said.token or said in whole]
        assert len(kept) >= least, f"{least} messages were seen, and {len(kept)} are kept"
        assert list(kept[: len(whole)]) == whole[: len(kept)]
        if begun and len(kept) > len(whole):
            following = kept[len(whole)]
            assert following.role == "assistant"
            assert following.text.startswith(begun)


# ── What the log has ───────────────────────────────────────────────────────────────────────────


class SeenMarker(NamedTuple):
    name: str
    summary: str
    end_id: int


@dataclass
class ParsedLog:
    messages: list[SeenMessage] = field(default_factory=list)
    markers: list[SeenMarker] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)  # runs that were closed as such
    data: bytes = b""  # of whole lines
    torn: bytes = b""  # what follows them

    def split_turns(self) -> list[list[SeenMessage]]:
        """The messages, cut where a turn begins."""
        found: list[list[SeenMessage]] = []
        for message in self.messages:
            if message.token and "+" not in message.token:
                found.append([])
            found[-1].append(message)
        return found

    @property
    def ends_in_calls(self) -> bool:
        """Whether they are the last thing in it, without a result."""
        last = complete_history(self.messages)[-1:]
        return bool(last) and last[0].text == INTERRUPTED

    def history(self, end: int) -> list[SeenMessage]:
        """What the model is shown when `end` messages are kept."""
        markers = [marker for marker in self.markers if marker.end_id < end]
        start = markers[-1].end_id if markers else 0
        summary = [SeenMessage("user", markers[-1].summary)] if markers else []
        return summary + complete_history(self.messages[start:end])


def log_path(home: Path, pair: Pair) -> Path:
    return home / "sessions" / f"{make_log_name(pair)}.jsonl"


def read_log(path: Path, pair: Pair) -> ParsedLog:
    """Each line is read by itself; ids must count up from 0, and markers stand where they say."""
    data = path.read_bytes() if path.exists() else b""
    end = data.rfind(b"\n") + 1
    found = ParsedLog(data=data[:end], torn=data[end:])
    for number, line in enumerate(found.data.split(b"\n")[:-1]):
        record = json.loads(line)
        if number == 0:
            assert record["kind"] == "meta"
            assert (record["agent"], record["created_by"]) == pair
        match record["kind"]:
            case "message":
                assert record["id"] == len(found.messages)
                found.messages.append(from_log(record["message"]))
            case "compact":
                assert record["end_id"] == len(found.messages)
                found.markers.append(
                    SeenMarker(record["archive_name"], record["summary"], record["end_id"])
                )
            case "event":
                if record["data"].get("stop_reason") == "interrupted":
                    found.interrupted.append(record["run"])
            case kind:
                assert kind == "meta"
    assert len(set(found.interrupted)) == len(found.interrupted)  # each once
    assert not path.with_suffix(".damaged").exists()
    return found


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
    """As a strict vendor wants it: each call has a result, and guests' words are in a tag."""
    whole: list[SeenMessage] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            waiting.remove(message.call_id)
        else:
            whole += [SeenMessage("tool", INTERRUPTED, call_id=call_id) for call_id in waiting]
            waiting = [call_id for call_id, _, _ in message.calls]
        if message.agent:
            text = f'<from agent="{message.agent}">\n{message.text}\n</from>'
            message = SeenMessage("assistant", text)
        whole.append(message)
    return whole + [SeenMessage("tool", INTERRUPTED, call_id=call_id) for call_id in waiting]


# ── What the model saw ─────────────────────────────────────────────────────────────────────────


def read_request_messages(request: dict[str, Any]) -> list[SeenMessage]:
    """The messages of a request, but for the system's."""
    found: list[SeenMessage] = []
    for message in request["messages"]:
        if message["role"] == "system":
            continue
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", ())
        ]
        text = normalize_result(message["role"], message.get("content") or "")
        found.append(
            SeenMessage(
                message["role"], text, tuple(calls), call_id=message.get("tool_call_id", "")
            )
        )
    return found


def check_strict(messages: Iterable[SeenMessage]) -> None:
    """Each call is answered once, before anybody else speaks; nothing else is answered."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.call_id in waiting, f"nobody asked for {message}"
            waiting.remove(message.call_id)
        else:
            assert not waiting, f"{waiting} have no result"
            waiting = [call_id for call_id, _, _ in message.calls]
    assert not waiting, f"{waiting} have no result"


def is_summary(request: dict[str, Any]) -> bool:
    return "You compact conversations" in str(request["messages"][0]["content"])


def check_request(request: dict[str, Any], log: ParsedLog) -> None:
    """All it was shown was kept by then, in that order and nothing left out."""
    if is_summary(request):
        told = set(TOKEN.findall(request["messages"][-1]["content"]))
        assert told <= {message.token for message in log.messages}
        return
    messages = read_request_messages(request)
    check_strict(messages)
    summaries = {marker.summary for marker in log.markers}
    told_of = [m for m in messages if m.role != "user" or m.token or m.text in summaries]
    end = len(log.messages)
    while end and not is_same_message(log.messages[end - 1], told_of[-1]):
        end -= 1
    assert end, f"{told_of[-1]} was not kept before the model was asked"
    assert told_of == log.history(end)


def is_same_message(kept: SeenMessage, told: SeenMessage) -> bool:
    return (kept.role, kept.text, kept.call_id) == (told.role, told.text, told.call_id)


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
    """Whether nothing was said: there is no such conversation, or nothing in it."""
    try:
        page = await client.list_messages(pair.agent, sender=pair.sender)
    except ServerError as error:
        return error.code == 404
    return not page.messages


async def list_wire_messages(client: Client, pair: Pair) -> list[SeenMessage]:
    """All messages the wire has of a conversation."""
    found: list[SeenMessage] = []
    offset: int | None = 0
    while offset is not None:
        page = await client.list_messages(pair.agent, sender=pair.sender, offset=offset, limit=100)
        assert [message.id for message in page.messages] == list(
            range(len(found), len(found) + len(page.messages))
        )
        found += [from_wire(message) for message in page.messages]
        offset = page.next_offset if page.HasField("next_offset") else None
    assert page.total == len(found)
    return found


def from_wire(message: wire.ConversationMessage) -> SeenMessage:
    calls = tuple((call.id, call.name, call.arguments) for call in message.tool_calls)
    text = normalize_result(message.role, message.content)
    return SeenMessage(message.role, text, calls, message.call_id, message.agent)
