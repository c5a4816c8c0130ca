"""Records: encoding and decoding round-trip, and nothing else is accepted as a record."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model.messages import Image, Message, ToolCall
from crabtalk.storage.records import (
    ConversationMeta,
    EventRecord,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Record,
    decode_record,
    encode_line,
    encode_records,
    make_archives,
    replay_records,
)
from tests.storage.sample_records import AT, make_every_kind, make_marker, make_message

TEXT = st.text()
COUNT = st.integers(0, 2**53)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
IMAGE = st.builds(Image, media_type=TEXT, data=st.binary(), url=TEXT)
CALL = st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT)
MESSAGE = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    text=TEXT,
    images=st.lists(IMAGE, max_size=2).map(tuple),
    reasoning=TEXT,
    tool_calls=st.lists(CALL, max_size=2).map(tuple),
    call_id=TEXT,
    name=TEXT,
    is_error=st.booleans(),
    agent=TEXT,
    opaque=OBJECT,
)
MAYBE = st.none() | TEXT
RECORD: st.SearchStrategy[Record] = st.one_of(
    st.builds(MessageRecord, id=COUNT, at=TEXT, message=MESSAGE),
    st.builds(EventRecord, event=TEXT, at=TEXT, run=TEXT, data=OBJECT),
    st.builds(MarkerRecord, TEXT, TEXT, TEXT, TEXT, COUNT),
    st.builds(MetaRecord, MAYBE, MAYBE, MAYBE, MAYBE, MAYBE, st.none() | COUNT, MAYBE),
)
# Lone surrogates, among characters that can be encoded and that must be escaped.
BROKEN = st.text(st.sampled_from("a\n\0é🦀\ud83e\udd80"), min_size=1)
KINDS = {
    MessageRecord: b'{"kind":"message"',
    EventRecord: b'{"kind":"event"',
    MarkerRecord: b'{"kind":"compact"',
    MetaRecord: b'{"kind":"meta"',
}


@given(RECORD)
def test_a_record_is_decoded_as_it_was_encoded(record: Record) -> None:
    assert decode_record(encode_line(record)) == record


@pytest.mark.req("storage.jsonl")
@given(RECORD)
def test_a_record_is_one_line_that_begins_with_its_kind(record: Record) -> None:
    line = encode_line(record)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert line.startswith(KINDS[type(record)])


@given(st.lists(RECORD, max_size=5))
def test_records_are_encoded_in_order(records: list[Record]) -> None:
    assert [decode_record(line) for line in encode_records(records).splitlines()] == records


@given(RECORD, st.data())
def test_no_part_of_a_line_passes_for_a_record(record: Record, data: st.DataObject) -> None:
    line = encode_line(record)
    cut = data.draw(st.integers(0, len(line) - 2))
    with pytest.raises(ValueError, match="no record"):
        decode_record(line[:cut])


@given(BROKEN)
def test_half_a_surrogate_pair_becomes_a_question_mark_in_any_record(text: str) -> None:
    whole = text.encode(errors="replace").decode()

    def records(text: str) -> list[Record]:
        message = Message("assistant", text, opaque={text: [{"a": text, "n": 1.5}]})
        return [
            MessageRecord(0, AT, message),
            EventRecord(text, AT, data={"deep": {text: (text, None)}}),
            MarkerRecord("n", AT, text, text, 3),
            MetaRecord(title=text),
        ]

    for broken, record in zip(records(text), records(whole), strict=True):
        line = encode_line(broken)
        assert line.startswith(KINDS[type(record)])
        assert line.count(b"\n") == 1
        assert decode_record(line) == decode_record(encode_line(record))


def test_a_number_that_json_lacks_does_not_make_a_record_unreadable() -> None:
    for text in ("", "\ud83e"):
        event = EventRecord("e", AT, text, {"rate": float("nan"), "most": float("inf")})
        found = decode_record(encode_line(event))
        assert isinstance(found, EventRecord)
        assert found.data == {"rate": None, "most": None}


@pytest.mark.parametrize("record", make_every_kind(), ids=lambda record: type(record).__name__)
def test_unknown_keys_do_not_make_a_record_unreadable(record: Record) -> None:
    fields: dict[str, Any] = json.loads(encode_line(record))
    fields["topic"] = {"of": ["another", "version"]}
    if "message" in fields:
        fields["message"]["mood"] = "fine"
    assert decode_record(json.dumps(fields).encode()) == record


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0\0\0",
        b"null",
        b"[]",
        b"{}",
        b'{"kind":"poem","text":"a"}',
        b'{"event":"done","at":""}',
        b'{"kind":"message","id":"0","at":"","message":{"role":"user"}}',
        b'{"kind":"message","id":0,"at":"","message":{"role":"pilot"}}',
        b'{"kind":"event","event":"\xff","at":""}',
        b'{"kind":"event","event":"\\ud800","at":""}',
        b'{"kind":"event","event":"e","at":""}{"kind":"event","event":"e","at":""}',
        b'{"kind":"event","event":"e","at":"","data":{"a":' + b"[" * 9000 + b"]" * 9000 + b"}}",
    ],
)
def test_a_line_that_is_no_record_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match="no record"):
        decode_record(line)


@pytest.mark.req("storage.meta")
def test_a_message_and_a_marker_bring_the_meta_up_to_date() -> None:
    meta = ConversationMeta("crab", "user", created_at="1", title="t", updated_at="1")
    assert meta.apply_record(
        MessageRecord(6, "2", Message("user", "hi"))
    ) == msgspec.structs.replace(meta, message_count=7, updated_at="2")
    assert meta.apply_record(
        MarkerRecord("a", "3", "x", "all of it", 5)
    ) == msgspec.structs.replace(meta, summary="all of it", updated_at="3")
    assert meta.apply_record(EventRecord("done", "4")) == meta


def test_a_meta_record_changes_only_its_own_fields() -> None:
    meta = ConversationMeta("crab", "user", "1", "t", "2", 3, "s")
    assert meta.apply_record(MetaRecord()) == meta
    assert meta.apply_record(MetaRecord(title="")) == msgspec.structs.replace(meta, title="")
    assert meta.apply_record(MetaRecord(title="u", message_count=0)) == msgspec.structs.replace(
        meta, title="u", message_count=0
    )


@given(st.builds(ConversationMeta, TEXT, TEXT, TEXT, TEXT, TEXT, COUNT, TEXT))
def test_a_snapshot_says_all_but_the_summary(meta: ConversationMeta) -> None:
    fresh = ConversationMeta("another", "one", "x", "x", "x", 1, summary=meta.summary)
    assert fresh.apply_record(meta.make_snapshot()) == meta
    assert meta.make_snapshot().summary is None


@given(st.lists(RECORD, max_size=8), st.integers(0, 8))
def test_applying_records_twice_makes_no_difference(records: list[Record], cut: int) -> None:
    """Listings rely on this, since they do not know how much of a log they have read."""
    once = apply_all(ConversationMeta("crab", "user"), records)
    assert apply_all(once, records[cut:]) == once


def apply_all(meta: ConversationMeta, records: list[Record]) -> ConversationMeta:
    for record in records:
        meta = meta.apply_record(record)
    return meta


def test_replay_has_what_follows_the_last_marker() -> None:
    stored = replay_records(make_every_kind(), ConversationMeta("crab", "tg:12345"), 123)
    assert [record.id for record in stored.messages] == [3, 4]
    assert stored.marker == make_marker(3)
    assert stored.meta == ConversationMeta(
        "crab", "tg:12345", AT, "Two files", AT, 5, "They talked."
    )
    assert stored.size == 123


def test_a_marker_says_how_many_messages_there_were_before_it() -> None:
    assert (
        replay_records([make_marker(7)], ConversationMeta("crab", "user")).meta.message_count == 7
    )
    assert (
        replay_records(
            [make_marker(7), make_message(7)], ConversationMeta("crab", "user")
        ).meta.message_count
        == 8
    )


def test_archives_cover_all_archived_messages_without_gaps() -> None:
    found = make_archives([make_marker(3, "one"), make_marker(5, "two"), make_marker(9, "three")])
    assert [(a.first_id, a.end_id, a.summary) for a in found] == [
        (0, 3, "one"),
        (3, 5, "two"),
        (5, 9, "three"),
    ]
    assert found[0].name == "crab-tg-3"
    assert make_archives([]) == []
