"""Checks the stored record of a conversation, after faults of the daemons that wrote it.

A trigger in the database notes for every entry the lease under which it was written.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

TOKEN = re.compile(r"#\S+/\d+/\d+(?= \.)")

AUDIT_SCHEMA = """
CREATE TABLE audit (
    conversation bigint, seq bigint, run text, fence bigint, owner uuid,
    PRIMARY KEY (conversation, seq)
);
CREATE FUNCTION note_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit SELECT NEW.conversation, NEW.seq, l.run, l.fence, l.owner
    FROM conversations c LEFT JOIN leases l ON l.key = c.key WHERE c.id = NEW.conversation;
    RETURN NULL;
END $$;
CREATE TRIGGER note_entry AFTER INSERT ON entries FOR EACH ROW EXECUTE FUNCTION note_entry();
"""
ENTRIES = """
SELECT e.seq, e.message_id, e.kind, e.body, a.run, a.fence, a.owner
FROM entries e LEFT JOIN audit a ON a.conversation = e.conversation AND a.seq = e.seq
WHERE e.conversation = $1 ORDER BY e.seq
"""


@dataclass
class RecordSegment:
    """The entries from one user message to the next."""

    token: str
    lease: str  # run id of the lease that owned the turn
    fence: int
    runs: set[str]
    done: list[str]
    text: str = ""


async def begin_audit(connection: Any) -> None:
    """Create the audit table and trigger, for entries written from now on."""
    await connection.execute(AUDIT_SCHEMA)


async def check_conversation(
    connection: Any, sender: str, acknowledged: list[list[str]], sent: set[str]
) -> list[RecordSegment]:
    """Raises AssertionError if the record is wrong. `acknowledged` has the tokens of each sender's
    acknowledged messages, in order."""
    row = await connection.fetchrow(
        "SELECT id, last_seq, message_count FROM conversations WHERE sender = $1", sender
    )
    if row is None:
        assert not any(acknowledged), f"{sender} is lost"
        return []
    entries = await connection.fetch(ENTRIES, row["id"])
    assert [entry["seq"] for entry in entries] == list(range(1, row["last_seq"] + 1))
    numbers = [entry["message_id"] for entry in entries if entry["kind"] == "message"]
    assert numbers == list(range(row["message_count"]))
    fences = [entry["fence"] for entry in entries]
    assert None not in fences, "something was written without a lease"
    segments = split_segments(sender, entries)
    for segment in segments:
        check_segment(segment)
    tokens = [segment.token for segment in segments]
    assert len(set(tokens)) == len(tokens), "a message was stored twice"
    assert set(tokens) <= sent
    runs = [segment.lease for segment in segments]
    assert len(set(runs)) == len(runs), "one run for two messages"
    positions = {segment.token: position for position, segment in enumerate(segments)}
    for tokens_of_sender in acknowledged:
        lost = [token for token in tokens_of_sender if token not in positions]
        assert not lost, f"acknowledged, and lost: {lost}"
        assert [positions[token] for token in tokens_of_sender] == sorted(
            positions[token] for token in tokens_of_sender
        )
        for token in tokens_of_sender:
            segment = segments[positions[token]]
            assert segment.done == ["completed"], f"{token} was acknowledged: {segment}"
            assert f"re {token} ." in segment.text
    return segments


def split_segments(sender: str, entries: list[Any]) -> list[RecordSegment]:
    segments: list[RecordSegment] = []
    for entry in entries:
        body = json.loads(entry["body"])
        if entry["kind"] == "meta":
            continue
        if entry["kind"] == "message" and body["message"]["role"] == "user":
            (token,) = TOKEN.findall(body["message"]["text"].split("\n")[0])
            # The next owner of the turn appends the accepted messages of a dead daemon.
            segments.append(RecordSegment(token, body["run"], entry["fence"], set(), []))
            continue
        assert segments, f"an entry precedes the first user message of {sender}: {body}"
        last = segments[-1]
        is_closing = body.get("event") == "done" and body["data"]["stop_reason"] == "interrupted"
        assert entry["run"] == last.lease or is_closing, f"{body} was written in the turn of {last}"
        assert entry["fence"] == last.fence or is_closing, f"{body} is not of the turn of {last}"
        if entry["kind"] == "event":
            last.runs.add(body["run"])
            if body["event"] == "done":
                last.done.append(body["data"]["stop_reason"])
                continue
        else:
            last.text += body["message"].get("text", "")
        assert not last.done, f"{body} came after the end of {last}"
    return segments


def check_segment(segment: RecordSegment) -> None:
    """The run is closed exactly once, and no other run has written into it."""
    assert segment.runs == {segment.lease}, f"more than one run: {segment}"
    assert len(segment.done) == 1, f"closed {len(segment.done)} times: {segment}"
    assert set(TOKEN.findall(segment.text)) <= {segment.token}, f"interleaved: {segment}"
