"""What the record of a conversation must be like, whatever became of the daemons that wrote it.

The database itself notes, for every entry, whose lease it was written under: `Audit`.
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
    """What is between one thing a user said and the next."""

    token: str
    lease: str  # the run that had the turn
    fence: int
    runs: set[str]
    done: list[str]
    said: str = ""


async def begin_audit(connection: Any) -> None:
    """From now on, for all conversations."""
    await connection.execute(AUDIT_SCHEMA)


async def check_conversation(
    connection: Any, sender: str, acknowledged: list[list[str]], sent: set[str]
) -> list[RecordSegment]:
    """Raises AssertionError for whatever is not as it must be. `acknowledged` are the tokens of
    each person, in the order in which they said them."""
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
    assert len(set(tokens)) == len(tokens), "something was kept twice"
    assert set(tokens) <= sent
    runs = [segment.lease for segment in segments]
    assert len(set(runs)) == len(runs), "one run for two messages"
    places = {segment.token: place for place, segment in enumerate(segments)}
    for person in acknowledged:
        lost = [token for token in person if token not in places]
        assert not lost, f"acknowledged, and lost: {lost}"
        assert [places[token] for token in person] == sorted(places[token] for token in person)
        for token in person:
            segment = segments[places[token]]
            assert segment.done == ["completed"], f"{token} was acknowledged: {segment}"
            assert f"re {token} ." in segment.said
    return segments


def split_segments(sender: str, entries: list[Any]) -> list[RecordSegment]:
    segments: list[RecordSegment] = []
    for entry in entries:
        body = json.loads(entry["body"])
        if entry["kind"] == "meta":
            continue
        if entry["kind"] == "message" and body["message"]["role"] == "user":
            (token,) = TOKEN.findall(body["message"]["text"].split("\n")[0])
            # An accepted message of a daemon that died is put there by whoever has the turn then.
            segments.append(RecordSegment(token, body["run"], entry["fence"], set(), []))
            continue
        assert segments, f"something came before anything was said to {sender}: {body}"
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
            last.said += body["message"].get("text", "")
        assert not last.done, f"{body} came after the end of {last}"
    return segments


def check_segment(segment: RecordSegment) -> None:
    """It is closed exactly once, and nobody else has a word in it."""
    assert segment.runs == {segment.lease}, f"more than one run: {segment}"
    assert len(segment.done) == 1, f"closed {len(segment.done)} times: {segment}"
    assert set(TOKEN.findall(segment.said)) <= {segment.token}, f"interleaved: {segment}"
