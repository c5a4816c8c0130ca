"""Generated parts of the book match the sources: keys, limits, messages, codes, numbers."""

import dataclasses
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from bench.__main__ import BENCHES
from crabtalk.daemon.config.settings import LIMIT_KEYS, LIMIT_TYPES, SECTIONS
from crabtalk.protocol import RequestError, wire
from docs import generate
from docs.generate import (
    BLOCK,
    DAEMON_HELP,
    GENERATED,
    PAGES,
    ROW,
    SCRIPT,
    refresh_page,
    render_pages,
)
from docs.source_comments import parse_proto, read_error_codes, read_limits
from docs.speed_table import SPEED_ROWS, NotMeasuredError, format_cells, read_table
from tests.docs.book_pages import ROOT, read_page

STALE = f"run python -m {SCRIPT}"
BENCH = read_page("bench/README.md")


@pytest.mark.parametrize("page", [*PAGES, DAEMON_HELP.path])
@pytest.mark.req("book.generated")
def test_a_page_matches_the_sources(page: str) -> None:
    assert read_page(page) == render_pages()[ROOT / page], STALE


@pytest.mark.req("book.generated")
def test_each_generated_block_is_on_exactly_one_page() -> None:
    shown = [name for page in PAGES for _, name, _, _ in BLOCK.findall(read_page(page))]
    assert sorted(shown) == sorted(GENERATED)


@pytest.mark.req("book.generated")
@pytest.mark.parametrize("page", PAGES)
def test_a_stale_page_is_noticed_and_refreshed(page: str) -> None:
    text = read_page(page)
    rows = [row for *_, block, _ in BLOCK.findall(text) for row in block.splitlines()[3:] if row]
    for row in (rows[0], rows[-1]):
        without = text.replace(f"{row}\n", "", 1)
        assert without != text
        mended = refresh_page(without)
        assert mended != without
        # The meaning of a key is lost with its row; its name and its default come back.
        assert row.split("|")[1:3] in [line.split("|")[1:3] for line in mended.splitlines()]


@pytest.mark.req("book.generated")
@pytest.mark.parametrize("page", ["docs/reference/config.md", "docs/reference/agents.md"])
def test_every_key_has_a_meaning(page: str) -> None:
    found = [row for *_, block, _ in BLOCK.findall(read_page(page)) for row in ROW.findall(block)]
    assert found
    assert [key for key, meaning in found if not meaning] == []


def test_the_meaning_of_a_key_is_kept_and_its_default_is_refreshed() -> None:
    block = "| `a` | `7` | the first |\n| `gone` | | no more |\n"
    assert generate.make_key_table({"a": 1, "b": ""})(block).splitlines()[2:] == [
        "| `a` | `1` | the first |",
        "| `b` |  |  |",
    ]


# ── Configuration ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("book.generated")
def test_every_bound_is_there_with_its_default_and_a_comment() -> None:
    found = [bound for kind in LIMIT_TYPES for bound in read_limits(kind)]
    keys = [key for bound in found for key in bound.keys]
    assert sorted(keys) == sorted(LIMIT_KEYS)
    assert all(bound.comment.endswith(".") for bound in found)
    for kind in LIMIT_TYPES:
        real = {field.name: field.default for field in dataclasses.fields(kind)}
        shown = {k: v for b in read_limits(kind) for k, v in zip(b.keys, b.defaults, strict=True)}
        assert shown == real


@pytest.mark.req("book.generated")
def test_every_section_of_the_configuration_has_its_heading() -> None:
    titles = " ".join(re.findall(r"^## (.*)$", read_page("docs/reference/config.md"), re.MULTILINE))
    assert set(re.findall(r"\[(\w+)\]", titles)) == SECTIONS


# ── The wire ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("book.generated")
def test_every_message_field_and_value_of_the_wire_is_read_from_its_source() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    wire.DESCRIPTOR.CopyToProto(file)
    real = [(m.name, f.name, f.number) for m in file.message_type for f in m.field]
    real += [(e.name, value.name, value.number) for e in file.enum_type for value in e.value]
    read = [
        message
        for part in parse_proto(read_page("proto/crabtalk.proto"))
        for message in part.messages
    ]
    assert sorted((m.name, f.name, f.number) for m in read for f in m.members) == sorted(real)
    every = {*wire.DESCRIPTOR.message_types_by_name, *wire.DESCRIPTOR.enum_types_by_name}
    assert {message.name for message in read} == every


@pytest.mark.req("book.generated")
def test_a_comment_belongs_to_the_line_below_it() -> None:
    proto = """
// ── Stones ─────
// Two lines
// of it.
message Stone {
  // How many.
  repeated uint32 count = 1;
  optional string name = 101;
  reserved 2;
}
message None {}
enum Kind {
  FLAT = 0;
}
"""
    (part,) = parse_proto(proto)
    stone, none, kind = part.messages
    assert (part.title, stone.comment, none.comment) == ("Stones", "Two lines of it.", "")
    assert [dataclasses.astuple(member) for member in stone.members] == [
        ("count", 1, "repeated uint32", "How many."),
        ("name", 101, "optional string", ""),
    ]
    assert none.members == []
    assert (kind.is_enum, kind.members[0].kind) == (True, "")


@pytest.mark.req("book.generated")
def test_every_code_has_a_sentence() -> None:
    assert {code for code, _ in read_error_codes()} == {
        kind.code for kind in RequestError.__subclasses__()
    }
    assert all(sentence.endswith(".") for _, sentence in read_error_codes())


# ── Commands ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("book.generated")
def test_every_command_of_the_daemon_is_on_its_page() -> None:
    assert sorted(DAEMON_HELP.list_shown_commands(DAEMON_HELP.read_page())) == sorted(
        DAEMON_HELP.list_commands()
    )


# ── Numbers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("readme.numbers")
def test_the_numbers_of_the_readme_are_the_measured_ones() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| `\S+ -m bench (\w+)` \|$", read_page("README.md"), re.MULTILINE
    )
    assert rows == [(shown.what, format_cells(shown, BENCH), shown.bench) for shown in SPEED_ROWS]
    for shown in SPEED_ROWS:
        cells = {cell for row in read_table(BENCH, shown.table) for cell in row}
        assert set(re.findall(r"\d[\d.,]*\d", format_cells(shown, BENCH))) - {"99"} <= cells


@pytest.mark.req("readme.numbers")
def test_each_number_has_a_command_that_measures_it() -> None:
    for shown in SPEED_ROWS:
        source = Path(str(BENCHES[shown.bench].__code__.co_filename)).read_text(encoding="utf-8")
        assert re.split(r"[\d,]", shown.table)[0] in source, f"{shown.bench} measures no such table"


@pytest.mark.req("readme.numbers")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("### Ping round trip, µs", "### Ping, µs"),
        ("| unix      | one each |", "| unix      |     each |"),
        ("ours p50", "ours"),
    ],
)
def test_a_number_that_is_no_longer_measured_is_noticed(old: str, new: str) -> None:
    (ping,) = (shown for shown in SPEED_ROWS if shown.bench == "ping")
    assert old in BENCH
    with pytest.raises(NotMeasuredError):
        format_cells(ping, BENCH.replace(old, new))


@pytest.mark.req("readme.numbers")
def test_no_other_number_with_a_unit_is_claimed_in_the_readme() -> None:
    text = re.sub(BLOCK, "", read_page("README.md"))
    assert re.findall(r"\d[\d.,]* ?(?:ms|µs|MB|GB|KB|s)\b", text) == []


def test_every_file_that_is_generated_is_in_the_repository() -> None:
    assert all((ROOT / page).is_file() for page in PAGES)
