"""crabtalk search: the request to the daemon, and the output."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.cli import search_highlight
from crabtalk.cli.times import (
    TimeParameter,
    format_age,
    format_local_time,
    format_rfc3339,
    format_timestamp,
    parse_timestamp,
)
from crabtalk.protocol import wire
from tests.cli.canned_daemon import CannedDaemon, serve_daemon
from tests.cli.cli_process import run_at_terminal, run_crabtalk, strip_colours

YELLOW = "\x1b[33m\x1b[1m"
PLAIN = "\x1b[0m"


def make_item(number: int, role: str, snippet: str, **rest: object) -> wire.SessionHitItem:
    item = wire.SessionHitItem(message_id=number, role=role, snippet=snippet)
    item.MergeFrom(wire.SessionHitItem(**rest))  # type: ignore[arg-type]
    return item


HIT = wire.SessionHit(
    agent="crab",
    sender="tg:1",
    title="Tide tables",
    updated_at="2026-11-15T21:03:04.567Z",
    score=2.5,
    message_id=12,
    window=[
        make_item(11, "user", "When is\nhigh water?" + " And why?" * 20),
        make_item(12, "assistant", "Tide at noon, TIDE at midnight; the Tidé turns. " * 3),
        make_item(13, "tool", "", truncated=True, tool_name="bash"),
    ],
)


# ── Output ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.search")
async def test_a_hit_has_title_agent_sender_time_and_the_message_marked(home: Path) -> None:
    peer = CannedDaemon()
    peer.session_hits = [HIT, wire.SessionHit(agent="owl", sender="user", window=[])]
    async with serve_daemon(peer, home):
        outcome = await run_crabtalk("search", "--home", home, "tide", TZ="UTC")
    first, second = outcome.output.rstrip("\n").split("\n\n")
    head, before, match, after = first.splitlines()
    assert head == "Tide tables · crab with tg:1 · 2026-11-15 21:03"
    assert before.startswith("  #11 user: When is high water? And why?")
    assert len(before) <= 100
    assert before.endswith("…")
    assert (
        match == "> #12 assistant: " + ("Tide at noon, TIDE at midnight; the Tidé turns. " * 3)[:-1]
    )
    assert after == "  #13 tool:bash: …"
    assert second.startswith("(untitled) · owl with user")


@pytest.mark.req("cli.search")
async def test_json_output_is_one_complete_document(home: Path) -> None:
    peer = CannedDaemon()
    peer.session_hits = [HIT]
    async with serve_daemon(peer, home):
        outcome = await run_crabtalk("search", "--home", home, "tide", "--json")
    (hit,) = json.loads(outcome.output)["hits"]
    window = hit.pop("window")
    assert hit == {
        "agent": "crab",
        "sender": "tg:1",
        "title": "Tide tables",
        "updated_at": "2026-11-15T21:03:04.567Z",
        "score": 2.5,
        "message_id": 12,
    }
    assert window[2] == {
        "message_id": 13,
        "role": "tool",
        "tool_name": "bash",
        "snippet": "",
        "truncated": True,
    }


@pytest.mark.req("cli.search")
async def test_nothing_found_is_no_failure(home: Path) -> None:
    async with serve_daemon(CannedDaemon(), home):
        outcome = await run_crabtalk("search", "--home", home, "tide")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "nothing found\n")
        outcome = await run_crabtalk("search", "--home", home, "tide", "--json")
        assert json.loads(outcome.output) == {"hits": []}


@pytest.mark.req("cli.colour")
async def test_matching_words_are_highlighted_only_at_a_terminal_with_colour(home: Path) -> None:
    peer = CannedDaemon()
    peer.session_hits = [HIT]
    words = ("search", "--home", home, "tide")
    async with serve_daemon(peer, home):
        piped = await run_crabtalk(*words)
        _, coloured = await run_at_terminal(*words)
        _, plain = await run_at_terminal(*words, NO_COLOR="1")
        _, dumb = await run_at_terminal(*words, TERM="dumb")
    assert f"{YELLOW}Tide{PLAIN} at noon, {YELLOW}TIDE{PLAIN} at" in coloured
    assert f"the {YELLOW}Tidé{PLAIN} turns" in coloured
    assert strip_colours(coloured) == piped.output
    assert plain == dumb == piped.output


@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        ("the tide_table", "table", "the tide_[table]"),
        ("the theatre", "the", "the theatre"),  # a stop word
        ("海の水は高い", "海水", "[海]の[水]は高い"),
        ("Python水位", "python 水", "[Python][水]位"),
        ("Ünïcode", "unicode", "[Ünïcode]"),
        ("tides", "tide", "tides"),
        ("", "tide", ""),
    ],
)
def test_highlighting_matches_words_as_the_search_does(
    text: str, query: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_highlight, "has_colour", lambda: True)
    monkeypatch.setattr(search_highlight, "apply_style", lambda part, **_: f"[{part}]")
    assert search_highlight.highlight_terms(text, query) == shown


@given(st.text(), st.text())
def test_highlighting_changes_no_text(text: str, query: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_highlight, "has_colour", lambda: True)
        patch.setattr(search_highlight, "apply_style", lambda part, **_: part)
        assert search_highlight.highlight_terms(text, query) == text


@pytest.mark.req("cli.terminal.safe")
async def test_control_characters_of_hits_are_escaped_at_a_terminal(home: Path) -> None:
    evil = "a\x1b[2Jb\x07"
    peer = CannedDaemon()
    peer.session_hits = [
        wire.SessionHit(
            agent=evil,
            sender=evil,
            title=evil,
            window=[make_item(0, "user", evil), make_item(1, "tool", evil, tool_name=evil)],
        )
    ]
    async with serve_daemon(peer, home):
        code, screen = await run_at_terminal("search", "--home", home, "b")
    assert code == 0
    assert "\x1b" not in strip_colours(screen)
    assert "\x07" not in screen


# ── Requests ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.search")
async def test_the_options_are_sent_as_filters(home: Path) -> None:
    async with serve_daemon(peer := CannedDaemon(), home):
        options = ("--agent", "crab", "--sender", "bo", "--limit", "3", "--context", "1")
        times = ("--since", "2026-11-01", "--until", "2026-11-02")
        await run_crabtalk("search", "--home", home, "high", "water", *options, *times, TZ="UTC")
        await run_crabtalk("search", "--home", home, "tide")
    assert peer.requests == [
        wire.SearchSessionsMsg(
            query="high water",
            agent="crab",
            sender="bo",
            limit=3,
            context_before=1,
            context_after=1,
            since="2026-11-01T00:00:00Z",
            until="2026-11-03T00:00:00Z",
        ),
        wire.SearchSessionsMsg(query="tide", limit=5, context_before=2, context_after=2),
    ]


@pytest.mark.parametrize(
    ("text", "whole_day", "time"),
    [
        ("2026-11-01T18:30:00+02:00", False, "2026-11-01T16:30:00Z"),
        ("2026-11-01T18:30:00Z", True, "2026-11-01T18:30:00Z"),
        ("2026-12-31T00:00Z", True, "2026-12-31T00:00:00Z"),
    ],
)
def test_an_explicit_time_is_parsed(text: str, whole_day: bool, time: str) -> None:
    assert format_rfc3339(TimeParameter(whole_day=whole_day).convert(text, None, None)) == time


def test_a_date_is_a_day_in_the_local_time_zone() -> None:
    start = datetime(2026, 11, 1).astimezone()
    assert TimeParameter().convert("2026-11-01", None, None) == start
    end = datetime(2026, 11, 2).astimezone()
    assert TimeParameter(whole_day=True).convert("2026-11-01", None, None) == end


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30m", timedelta(minutes=30)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_a_span_is_parsed_as_a_time_ago(text: str, ago: timedelta) -> None:
    moment = TimeParameter().convert(text, None, None)
    assert abs(datetime.now(UTC) - ago - moment) < timedelta(minutes=1)


@pytest.mark.parametrize("text", ["", "yesterday", "7", "d", "7y", "2026-13-01", "999999w"])
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="7d for seven days"):
        TimeParameter().convert(text, None, None)


@pytest.mark.req("cli.exit_codes")
async def test_an_invalid_time_is_a_usage_error() -> None:
    outcome = await run_crabtalk("search", "tide", "--since", "yesterday")
    assert (outcome.code, outcome.out) == (2, "")
    assert "'yesterday' is no time" in outcome.err


@given(st.integers(0, 2**64 - 1))
def test_seconds_survive_formatting_and_parsing(seconds: int) -> None:
    assert parse_timestamp(format_timestamp(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "a moment"),
        (59, "a moment"),
        (60, "1 minute"),
        (7199, "1 hour"),
        (86400 * 29, "29 days"),
        (86400 * 61, "2 months"),
        (86400 * 800, "2 years"),
    ],
)
def test_an_age_is_given_in_the_largest_unit(seconds: float, words: str) -> None:
    assert format_age(seconds) == words


def test_an_unparsable_time_is_shown_unchanged() -> None:
    assert format_local_time("@99999999999999") == "@99999999999999"
    assert format_local_time("") == ""
