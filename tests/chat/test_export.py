"""Exports of a conversation are complete, in order, and contain no active markup."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.chat.export import FORMATS, ExportFormat, create_exporter, export_messages
from crabtalk.protocol import wire

MESSAGES = [
    wire.ConversationMessage(
        role="user", content="What is **here**?", id=0, timestamp="2026-11-01T12:00:00Z"
    ),
    wire.ConversationMessage(
        role="assistant",
        content="I look.",
        id=1,
        reasoning="First look,\nthen speak.",
        tool_calls=[wire.ToolCallInfo(name="bash", arguments='{"command": "ls"}', id="c1")],
    ),
    wire.ConversationMessage(role="tool", content="a.txt\n```\nb", id=2, call_id="c1"),
    wire.ConversationMessage(role="assistant", content="I would not.", id=3, agent="twin"),
]


def export_sample(
    kind: ExportFormat, messages: list[wire.ConversationMessage] | None = None, title: str = ""
) -> str:
    return export_messages(
        MESSAGES if messages is None else messages,
        title=title,
        agent="crab",
        sender="",
        kind=kind,
    )


@pytest.mark.req("chat.export.md")
def test_markdown_has_speakers_messages_and_tool_calls() -> None:
    text = export_sample("md", title="Tides")
    assert text.startswith("# Tides\n\ncrab with user\n\n## user · 2026-11-01 ")
    assert "\n\nWhat is **here**?\n" in text
    assert "\n## crab\n\n> First look,\n> then speak.\n\nI look.\n\n`bash`\n\n```\n" in text
    assert "\n## tool\n\n````\na.txt\n```\nb\n````\n" in text
    assert text.endswith("\n## twin\n\nI would not.\n")


@pytest.mark.req("chat.export.json")
def test_json_is_one_complete_document() -> None:
    document = json.loads(export_sample("json", title="Tides"))
    assert document["title"] == "Tides"
    assert (document["agent"], document["sender"]) == ("crab", "user")
    assert document["messages"] == [
        {
            "id": 0,
            "timestamp": "2026-11-01T12:00:00Z",
            "role": "user",
            "content": "What is **here**?",
        },
        {
            "id": 1,
            "role": "assistant",
            "content": "I look.",
            "reasoning": "First look,\nthen speak.",
            "tool_calls": [{"id": "c1", "name": "bash", "arguments": '{"command": "ls"}'}],
        },
        {"id": 2, "role": "tool", "content": "a.txt\n```\nb", "call_id": "c1"},
        {"id": 3, "role": "assistant", "agent": "twin", "content": "I would not."},
    ]


class TagCollector(HTMLParser):
    """The elements, attributes and texts that a browser finds in a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


ALLOWED_TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "main", "article"),
    *("pre", "details", "summary"),
}


@pytest.mark.req("chat.export.html")
def test_html_is_self_contained() -> None:
    page = export_sample("html", title="Tides")
    assert page.startswith("<!doctype html>")
    tags = TagCollector(page)
    assert tags.names == ALLOWED_TAGS
    assert tags.attributes == {"charset", "name", "content", "class"}
    text = "".join(tags.text)
    for part in ("Tides", "What is **here**?", "First look,", '{"command": "ls"}', "twin"):
        assert part in text
    assert not re.search(r"https?:|url\(|@import", page)


HOSTILE = "</pre></style><script>alert(1)</script>\x1b[2J\u202e`````"


@pytest.mark.req("chat.export.safe")
@given(st.lists(st.text() | st.just(HOSTILE), min_size=6, max_size=6))
def test_no_message_becomes_markup(texts: list[str]) -> None:
    content, reasoning, name, arguments, guest, title = (
        text.encode(errors="replace").decode() for text in texts
    )
    message = wire.ConversationMessage(
        role="assistant",
        content=content,
        reasoning=reasoning,
        agent=guest,
        tool_calls=[wire.ToolCallInfo(name=name, arguments=arguments)],
    )
    assert TagCollector(export_sample("html", [message], title)).names <= ALLOWED_TAGS
    for file_format in FORMATS.values():
        assert not re.search("[\x1b\x9b\u202e]", export_sample(file_format, [message], title))
    document = json.loads(export_sample("json", [message], title))
    assert document["messages"][0]["content"] == content
    assert document["title"] == title


@pytest.mark.req("chat.export.safe")
@given(st.text(alphabet="`~ab\n ", max_size=40))
def test_a_fence_is_never_closed_by_its_content(output: str) -> None:
    message = wire.ConversationMessage(role="tool", content=f"x{output}")
    lines = export_sample("md", [message]).splitlines()
    fences = [n for n, line in enumerate(lines) if re.fullmatch(r"`{3,}", line)]
    opening = lines[fences[0]]
    assert [n for n in fences if len(lines[n]) >= len(opening)] == [fences[0], len(lines) - 1]


@pytest.mark.req("chat.export.pages")
@pytest.mark.parametrize("form", FORMATS.values())
def test_exporting_page_by_page_gives_the_same_file(form: ExportFormat) -> None:
    pieces = create_exporter(form, agent="crab", sender="user")
    text = pieces.begin()
    for message in MESSAGES:
        text += pieces.add([message])
    assert text + pieces.add([]) + pieces.end() == export_sample(form)


@pytest.mark.parametrize("form", FORMATS.values())
def test_an_empty_conversation_can_be_exported(form: ExportFormat) -> None:
    assert "crab" in export_sample(form, [])
