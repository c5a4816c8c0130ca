"""The book of pages: what a dump writes, and what a load reads from it."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from crabtalk.memory import AddEntry, EntryKind, MarkdownBookError, Memory, MemoryEntry, RemoveEntry
from crabtalk.memory import markdown_page as pages
from crabtalk.memory.markdown_book import read_book, write_book
from tests.memory.memory_samples import (
    ENTRIES,
    NAMES,
    TEXT,
    draw_entries,
    open_memory,
    read_entries,
    read_fixed_time,
)

SHIP = MemoryEntry(
    1, 1776162225, EntryKind.NOTE, "deploy", "prod rollout steps ...", ("ship", "release")
)
PAGE = """\
<div id="meta">
<dl>
  <dt>Created</dt>
  <dd><time datetime="2026-04-14T10:23:45Z">2026-04-14T10:23:45Z</time></dd>
  <dt>Aliases</dt>
  <dd><ul><li>ship</li><li>release</li></ul></dd>
</dl>
</div>

prod rollout steps ...
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "book"


def list_files(book: Path) -> set[str]:
    return {str(file.relative_to(book)) for file in book.rglob("*") if not file.is_dir()}


def make_note(name: str, content: str = "", *aliases: str) -> MemoryEntry:
    return MemoryEntry(1, 100, EntryKind.NOTE, name, content, aliases)


def round_trip(entries: list[MemoryEntry], book: Path) -> list[MemoryEntry]:
    write_book(entries, book)
    return read_book(book, 7)


# ── Dump ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.dump.layout")
def test_a_dump_is_a_book(book: Path) -> None:
    write_book(ENTRIES, book)
    assert list_files(book) == {
        "book.toml",
        "SUMMARY.md",
        "notes/deploy.md",
        "notes/日記.md",
        "archives/crab-user-1.md",
    }
    assert (book / "book.toml").read_text() == (
        '[book]\ntitle = "Memory"\nsrc = "."\n\n[output.html]\n'
    )


@pytest.mark.req("memory.dump.layout")
def test_topics_have_a_directory_when_there_are_any(book: Path) -> None:
    write_book([replace(SHIP, kind=EntryKind.TOPIC)], book)
    assert "topics/deploy.md" in list_files(book)
    write_book([SHIP], book)
    assert "topics/deploy.md" not in list_files(book)
    assert (book / "archives").is_dir()


@pytest.mark.req("memory.dump.page")
def test_a_page_has_the_format_that_other_readers_know(book: Path) -> None:
    write_book([SHIP], book)
    assert (book / "notes/deploy.md").read_text() == PAGE


@pytest.mark.req("memory.dump.page")
def test_without_aliases_there_is_no_row_for_them() -> None:
    assert "Aliases" not in pages.render_page(replace(SHIP, aliases=()), "deploy")
    assert "<li>a &amp; b &lt;c&gt;</li>" in pages.render_page(make_note("x", "", "a & b <c>"), "x")


@pytest.mark.req("memory.dump.summary")
def test_the_summary_lists_every_kind_by_name(book: Path) -> None:
    write_book([*ENTRIES, make_note("a [b](c) *d*"), make_note("coffee <br>")], book)
    assert (book / "SUMMARY.md").read_text() == (
        "# Summary\n\n"
        "# Notes\n\n"
        "- [a \\[b\\]\\(c\\) \\*d\\*](<notes/a [b](c) *d*.md>)\n"
        "- [coffee \\<br\\>](<notes/coffee \\<br\\>.md>)\n"
        "- [deploy](notes/deploy.md)\n"
        "- [日記](notes/日記.md)\n\n"
        "# Archives\n\n"
        "- [crab\\-user\\-1](archives/crab-user-1.md)\n"
    )


@pytest.mark.req("memory.dump.users_files")
def test_the_users_files_stay(book: Path) -> None:
    write_book([SHIP], book)
    (book / "book.toml").write_text("mine")
    (book / "theme").mkdir()
    (book / "theme" / "x.css").write_text("mine")
    (book / "notes" / "picture.png").write_text("mine")
    write_book([replace(SHIP, name="launch")], book)
    assert list_files(book) == {
        "book.toml",
        "SUMMARY.md",
        "theme/x.css",
        "notes/picture.png",
        "notes/launch.md",
    }
    assert (book / "book.toml").read_text() == "mine"


@pytest.mark.req("memory.dump.links")
def test_a_dump_does_not_write_through_links(book: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text("mine")
    (book / "notes").mkdir(parents=True)
    for name in ("notes/deploy.md", "notes/other.md", "SUMMARY.md", "book.toml"):
        (book / name).symlink_to(outside)
    write_book([SHIP], book)
    assert outside.read_text() == "mine"
    assert (book / "notes/deploy.md").read_text() == PAGE
    assert not (book / "notes/other.md").is_symlink()


@pytest.mark.req("memory.dump.links")
def test_a_directory_that_is_a_link_is_refused(book: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine.md").write_text("mine")
    book.mkdir()
    (book / "notes").symlink_to(tmp_path / "outside")
    with pytest.raises(MarkdownBookError, match="is a link and is not followed"):
        write_book([SHIP], book)
    with pytest.raises(MarkdownBookError, match="is a link and is not followed"):
        read_book(book, 7)
    assert list_files(tmp_path / "outside") == {"mine.md"}


# ── Load ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.load.page")
def test_a_page_without_a_block_is_content(book: Path) -> None:
    (book / "notes").mkdir(parents=True)
    (book / "notes/a.md").write_text("\ufeff\n\nplain text\n\n")
    (book / "notes/b.md").write_text('<div id="meta">\nnever closed\n')
    assert read_book(book, 7) == [
        MemoryEntry(1, 7, EntryKind.NOTE, "a", "plain text"),
        MemoryEntry(2, 7, EntryKind.NOTE, "b", '<div id="meta">\nnever closed'),
    ]


@pytest.mark.req("memory.load.page")
def test_a_page_is_read_however_an_editor_left_it() -> None:
    text = "\ufeff" + PAGE.replace("\n", "\r\n").replace("<li>ship</li>", "\n<li> ship </li>\n")
    page = pages.parse_page(text)
    assert page == pages.MarkdownPage(SHIP.content, "", SHIP.created_at, SHIP.aliases)


@pytest.mark.req("memory.load.page")
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("2026-04-14T10:23:45Z", 1776162225),
        ("2026-04-14T12:23:45.750+02:00", 1776162225),
        ("1969-12-31T23:59:59Z", None),
        ("2026-04-14T10:23:45", None),
        ("yesterday", None),
        ("@99999999999999999999", None),
    ],
)
def test_an_invalid_time_becomes_now(book: Path, when: str, expected: int | None) -> None:
    (book / "notes").mkdir(parents=True)
    page = PAGE.replace('datetime="2026-04-14T10:23:45Z"', f'datetime="{when}"')
    (book / "notes/deploy.md").write_text(page)
    assert read_book(book, 7)[0].created_at == (7 if expected is None else expected)


@pytest.mark.req("memory.load.replaces")
def test_a_load_replaces_everything_and_renumbers(book: Path, tmp_path: Path) -> None:
    path = tmp_path / "memory" / "crab.crmem"
    memory = open_memory(path)
    memory.apply(AddEntry("old", "to be gone"))
    write_book(ENTRIES, book)
    memory.load(book)
    expected = [
        replace(ENTRIES[0], id=1),
        replace(ENTRIES[2], id=2),
        replace(ENTRIES[1], id=3),
    ]
    assert memory.entries() == read_entries(path) == expected
    assert memory.search("gone") == []
    assert memory.search("rollout")[0].entry == expected[0]
    assert memory.apply(AddEntry("next", "")).id == 4
    memory.close()
    assert len(read_entries(path)) == 4


@pytest.mark.req("memory.load.replaces")
def test_an_empty_book_makes_an_empty_memory(book: Path, tmp_path: Path) -> None:
    write_book([], book)
    with open_memory(tmp_path / "crab.crmem") as memory:
        memory.apply(AddEntry("old", ""))
        memory.load(book)
        assert memory.entries() == read_entries(tmp_path / "crab.crmem") == []


@pytest.mark.req("memory.load.replaces")
def test_replacing_reports_names_that_are_there_twice(tmp_path: Path) -> None:
    with open_memory(tmp_path / "crab.crmem") as memory:
        old = memory.apply(AddEntry("old", ""))
        with pytest.raises(Exception, match="'ship' is there twice; give one another name"):
            memory.replace([SHIP, make_note("ship")])
        assert memory.entries() == [old]
        memory.replace([replace(SHIP, id=77)])
        assert memory.entries() == [SHIP]


@pytest.mark.req("memory.load.all_or_nothing")
@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("archives/deploy.md", b"again", r"notes/deploy.md and archives/deploy.md are both called"),
        ("notes/other.md", PAGE.encode(), r"notes/deploy.md and notes/other.md are both called"),
        ("notes/ship.md", b"a name that is an alias", r"are both called 'ship'"),
        ("notes/bytes.md", b"\xff\xfe", r"bytes.md is not UTF-8"),
        ("notes/large.md", b"x" * (1 << 20 | 1), r"large.md: the content of 'large' is larger"),
    ],
)
def test_a_load_that_fails_changes_nothing(
    book: Path, tmp_path: Path, name: str, data: bytes, why: str
) -> None:
    write_book([SHIP], book)
    (book / name).write_bytes(data)
    with open_memory(tmp_path / "crab.crmem") as memory:
        old = memory.apply(AddEntry("old", "stays"))
        with pytest.raises(MarkdownBookError, match=why):
            memory.load(book)
        assert memory.entries() == read_entries(tmp_path / "crab.crmem") == [old]


@pytest.mark.req("memory.load.all_or_nothing")
def test_a_directory_that_is_no_dump_is_not_loaded_as_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("elsewhere", "nowhere"):
        with pytest.raises(MarkdownBookError, match="name the directory of a dump"):
            read_book(tmp_path / name, 7)


@pytest.mark.req("memory.dump.links")
def test_a_page_that_is_a_link_is_refused(book: Path, tmp_path: Path) -> None:
    write_book([SHIP], book)
    (tmp_path / "secret").write_text("secret")
    (book / "notes/link.md").symlink_to(tmp_path / "secret")
    with pytest.raises(MarkdownBookError, match="is a link and is not followed"):
        read_book(book, 7)


@pytest.mark.req("memory.load.page")
def test_only_pages_are_loaded(book: Path) -> None:
    write_book([SHIP], book)
    (book / "notes/.hidden.md").write_text("no")
    (book / "notes/x.txt").write_text("no")
    (book / "notes/folder.md").mkdir()
    assert [entry.name for entry in read_book(book, 7)] == ["deploy"]


# ── Round trips ─────────────────────────────────────────────────────────────────────────────────

AWKWARD = [
    "a/b",
    "a\\b",
    "..",
    ".hidden",
    "trailing.",
    "trailing ",
    " leading",
    "nul\0",
    "new\nline",
    "x" * 300,
    "é" * 200,
    "Case",
    "case",
    "CASE",
    "nai\u0308ve",
    "naïve",
    "a.md",
    "~",
    "<b>&amp;</b>",
    "</div>",
    "next\u0085line",
    "tab\t",
    "\ufeffmark",
    "con",
]


@pytest.mark.req("memory.dump.names")
def test_a_name_that_no_file_can_have_is_restored(book: Path) -> None:
    entries = [make_note(name, name) for name in AWKWARD]
    entries_read = round_trip(entries, book)
    assert sorted(entry.name for entry in entries_read) == sorted(AWKWARD)
    assert all(entry.name == entry.content for entry in entries_read)
    names = [file.name for file in (book / "notes").iterdir()]
    assert len({name.casefold() for name in names}) == len(AWKWARD)
    assert all(len(name.encode()) <= 255 for name in names)
    assert list_files(book.parent) == {f"book/{name}" for name in list_files(book)}


@pytest.mark.req("memory.dump.exact")
@pytest.mark.parametrize(
    "content",
    [
        "",
        " ",
        "\n",
        "\n\nspace around \t\n",
        "  indented",
        "crlf\r\nlines\r\n",
        "\r",
        "\ufeffmark",
        PAGE,
        "</div>",
        '<div id="meta">',
        "\x1c\x85\u2028edge\u00a0",
        "form\x0cfeed\x0b",
        "null\0",
    ],
)
def test_content_is_restored_exactly(book: Path, content: str) -> None:
    assert round_trip([make_note("x", content)], book) == [make_note("x", content)]


@pytest.mark.req("memory.dump.exact")
@example([MemoryEntry(1, 2**64 - 1, EntryKind.TOPIC, "x\n", "\n", ("\ty", "&#9;", "&amp;"))])
@given(draw_entries())
def test_any_memory_is_restored_from_its_book(
    tmp_path_factory: pytest.TempPathFactory, entries: list[MemoryEntry]
) -> None:
    restored = round_trip(entries, tmp_path_factory.mktemp("book"))
    assert {replace(entry, id=0) for entry in restored} == {
        replace(entry, id=0) for entry in entries
    }
    assert [entry.id for entry in restored] == list(range(1, len(restored) + 1))


@given(TEXT, NAMES, st.lists(NAMES, max_size=3).map(tuple))
def test_a_page_is_parsed_as_it_was_rendered(
    content: str, name: str, aliases: tuple[str, ...]
) -> None:
    entry = MemoryEntry(1, 100, EntryKind.NOTE, name, content, aliases)
    page = pages.parse_page(pages.render_page(entry, "file"))
    assert (page.content, page.name, page.aliases) == (content, name, aliases)


@given(st.text())
def test_any_text_is_a_page(text: str) -> None:
    pages.parse_page(text)
    pages.parse_page('<div id="meta">\n' + text + "\n</div>\n" + text)


@pytest.mark.req("memory.dump.exact")
def test_a_book_of_a_memory_that_was_dumped_twice_is_the_same(book: Path, tmp_path: Path) -> None:
    with Memory.open(tmp_path / "crab.crmem", now=read_fixed_time) as memory:
        memory.apply(AddEntry("deploy", "prod\n", ("ship",)))
        memory.apply(AddEntry("x/y", "slash"))
        memory.apply(AddEntry("gone", ""))
        memory.dump(book)
        memory.apply(RemoveEntry("gone"))
        memory.dump(book)
        first = {name: (book / name).read_bytes() for name in list_files(book)}
        memory.load(book)
        memory.dump(book)
        assert {name: (book / name).read_bytes() for name in list_files(book)} == first
    assert len(first) == 4
