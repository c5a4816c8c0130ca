"""A page: one entry as markdown, with its metadata in an HTML block at the top. No file access.

Reading a page trims its content, and not every name can be a file name. Where that would change an
entry, the block has an extra row with the original, which other readers ignore. A note with an
author has a row for the author.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from .authors import get_author, strip_author
from .entry import EntryKind, MemoryEntry

OPENING = '<div id="meta">'
CLOSING = "</div>"
ROW_PATTERN = re.compile(r"<dt>\s*(\w+)\s*</dt>\s*<dd>(.*?)</dd>", re.DOTALL)
TIME_PATTERN = re.compile(r'<time\s+datetime="([^"]*)"')
ITEM_PATTERN = re.compile(r"<li>(.*?)</li>", re.DOTALL)
CODE_PATTERN = re.compile(r"<code>(.*?)</code>", re.DOTALL)
REFERENCE_PATTERN = re.compile(r"&(?:#(\d{1,7})|(amp|lt|gt));")
NAMED_REFERENCES = {"amp": "&", "lt": "<", "gt": ">"}
# Characters that a reader might trim or an editor change.
FRAGILE_PATTERN = re.compile(r"^\s|\s$|[^\S ]|[\x00-\x1f\x7f-\x9f\ufeff]")
# The last second of the year 9999, the latest date there is.
MAX_TIMESTAMP = 253402300799


@dataclass(frozen=True, slots=True)
class MarkdownPage:
    """The data of a page. Fields without a row are empty."""

    content: str
    name: str = ""
    created_at: int | None = None
    aliases: tuple[str, ...] = ()
    author: str = ""


def render_page(entry: MemoryEntry, stem: str) -> str:
    """Render the page of an entry for a file called `stem`."""
    author = "" if entry.kind is EntryKind.ARCHIVE else get_author(entry)
    entry = strip_author(entry) if author else entry
    when = format_time(entry.created_at)
    rows = [render_row("Created", f'<time datetime="{when}">{when}</time>')]
    if entry.aliases:
        items = "".join(f"<li>{escape_html(alias)}</li>" for alias in entry.aliases)
        rows.append(render_row("Aliases", f"<ul>{items}</ul>"))
    if author:
        rows.append(render_row("Author", f"<code>{escape_html(author)}</code>"))
    if stem != entry.name:
        rows.append(render_row("Name", f"<code>{escape_html(entry.name)}</code>"))
    body = entry.content.strip()
    before, after = find_edges(entry.content)
    if before or after:
        edges = "".join(f"<code>{escape_html(json.dumps(edge))}</code>" for edge in (before, after))
        rows.append(render_row("Whitespace", edges))
    return "\n".join([OPENING, "<dl>", *rows, "</dl>", CLOSING, "", body, ""])


def render_row(term: str, value: str) -> str:
    return f"  <dt>{term}</dt>\n  <dd>{value}</dd>"


def find_edges(content: str) -> tuple[str, str]:
    """The white space before and after the content."""
    body = content.strip()
    if not body:
        return content, ""
    start = content.index(body)
    return content[:start], content[start + len(body) :]


def parse_page(text: str) -> MarkdownPage:
    """Parse a page. Without a block, all of it is content."""
    text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    end = find_closing_line(lines)
    if not end:
        return MarkdownPage(text.strip())
    rows = dict(ROW_PATTERN.findall("\n".join(lines[1:end])))
    before, after = parse_whitespace(rows.get("Whitespace", ""))
    created = TIME_PATTERN.search(rows.get("Created", ""))
    return MarkdownPage(
        content=before + "\n".join(lines[end + 1 :]).strip() + after,
        name=next(map(unescape_html, CODE_PATTERN.findall(rows.get("Name", ""))), ""),
        created_at=parse_time(created[1]) if created else None,
        aliases=tuple(
            unescape_html(item.strip()) for item in ITEM_PATTERN.findall(rows.get("Aliases", ""))
        ),
        author=next(map(unescape_html, CODE_PATTERN.findall(rows.get("Author", ""))), ""),
    )


def find_closing_line(lines: list[str]) -> int:
    """The index of the line that closes the block; 0 when there is no block."""
    if lines[0].strip() != OPENING:
        return 0
    return next((number for number, line in enumerate(lines) if line.strip() == CLOSING), 0)


def parse_whitespace(value: str) -> tuple[str, str]:
    """The white space around the content; empty when the row was edited into something else."""
    edges = [unescape_html(edge) for edge in CODE_PATTERN.findall(value)]
    try:
        before, after = map(json.loads, edges)
    except ValueError:
        return "", ""
    is_blank = isinstance(before, str) and isinstance(after, str) and not (before + after).strip()
    return (before, after) if is_blank else ("", "")


def format_time(created_at: int) -> str:
    """RFC 3339 to the second, or `@` and seconds if it is beyond the last date."""
    if created_at > MAX_TIMESTAMP:
        return f"@{created_at}"
    return datetime.fromtimestamp(created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(when: str) -> int | None:
    """None for anything that is not a time since 1970."""
    if re.fullmatch(r"@\d{1,20}", when):
        return int(when[1:]) if int(when[1:]) < 2**64 else None
    try:
        time = datetime.fromisoformat(when)
    except ValueError:
        return None
    if time.tzinfo is None or time.timestamp() < 0:
        return None
    return int(time.timestamp())


def escape_html(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return FRAGILE_PATTERN.sub(lambda match: f"&#{ord(match[0])};", text)


def unescape_html(text: str) -> str:
    return REFERENCE_PATTERN.sub(
        lambda match: NAMED_REFERENCES.get(match[2]) or decode_character(match[1]), text
    )


def decode_character(number: str) -> str:
    code = int(number)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
