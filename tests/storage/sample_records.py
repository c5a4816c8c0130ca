"""Sample records of a conversation for storage tests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from crabtalk.model.messages import Image, Message, ToolCall
from crabtalk.storage import (
    ConversationMeta,
    EventRecord,
    FileStorage,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    make_log_name,
)
from crabtalk.storage.checksums import read_link, seal_lines
from crabtalk.storage.records import encode_records

PAIR = Pair("crab", "tg:12345")
AT = "2026-04-28T10:00:00+00:00"


@asynccontextmanager
async def open_file_storage(home: Path, *, flush: bool = False) -> AsyncIterator[FileStorage]:
    home.mkdir(exist_ok=True)
    storage = FileStorage(home, flush=flush)
    try:
        yield storage
    finally:
        await storage.close()


def log_path(home: Path, pair: Pair = PAIR) -> Path:
    return home / "sessions" / f"{make_log_name(pair)}.jsonl"


def seal_records(records: Sequence[Record], before: bytes = b"") -> bytes:
    """The lines that storage writes for these records when the log has `before`."""
    lines = before.splitlines()
    return seal_lines(encode_records(records), read_link(lines[-1]) if lines else b"")[0]


def make_opening(pair: Pair = PAIR, title: str = "") -> MetaRecord:
    return ConversationMeta(pair.agent, pair.sender, created_at=AT, title=title).make_snapshot()


def make_message(number: int, text: str = "") -> MessageRecord:
    return MessageRecord(number, AT, Message("user", text or f"message {number}"))


def make_marker(end: int, summary: str = "They talked.") -> MarkerRecord:
    return MarkerRecord(f"crab-tg-{end}", AT, "They talked", summary, end)


def make_every_kind() -> list[Record]:
    """A log with records of every kind."""
    call = ToolCall("c1", "bash", '{"command":"ls"}')
    return [
        make_opening(),
        MessageRecord(0, AT, Message("user", 'look\n"here"', images=(Image(data=b"\x89PNG"),))),
        MessageRecord(1, AT, Message("assistant", reasoning="🦀?", tool_calls=(call,))),
        EventRecord("tool_start", AT, "r1", {"calls": ["c1"]}),
        MessageRecord(2, AT, Message("tool", "a\nb", call_id="c1", name="bash", is_error=True)),
        make_marker(3),
        ConversationMeta(*PAIR, created_at=AT, title="Files", message_count=3).make_snapshot(),
        MessageRecord(3, AT, Message("user", "and now?")),
        MessageRecord(4, AT, Message("assistant", "Done.", agent="twin", opaque={"x": {"y": 1}})),
        MetaRecord(title="Two files"),
        EventRecord("done", AT, "r2"),
    ]
