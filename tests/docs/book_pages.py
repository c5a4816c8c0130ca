"""Read the pages of the book for its tests: blocks of code, headings and links."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "docs"
FENCE = re.compile(r"^( *)(```+|~~~+)([^\n`]*)\n(.*?)^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
# A link or a picture. Links in code, or between < and >, do not count.
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)(?: \"[^\"]*\")?\)")


@dataclass(frozen=True, slots=True)
class PageCodeBlock:
    """Code on a page. `number` counts the blocks of its language on the page, from 1."""

    page: str
    number: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"


def list_pages() -> list[Path]:
    """Every page of the book, and the README."""
    return [ROOT / "README.md", *sorted(BOOK.rglob("*.md"))]


def get_page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read_page(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def find_blocks(page: str | Path, *languages: str) -> list[PageCodeBlock]:
    """Return the blocks in any of the languages, in page order."""
    seen: Counter[str] = Counter()
    found = []
    for _, _, words, code in FENCE.findall(read_page(page)):
        language = words.strip()
        seen[language] += 1
        if language in languages:
            found.append(PageCodeBlock(get_page_name(ROOT / page), seen[language], language, code))
    return found


def strip_code(text: str) -> str:
    """Remove code, so that nothing in it counts as a heading or a link."""
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", strip_brackets, FENCE.sub("", text))


def strip_brackets(span: re.Match[str]) -> str:
    return re.sub(r"[\[\]()]", "", span[2])


def find_links(text: str) -> Iterator[str]:
    yield from LINK.findall(strip_code(text))


def find_anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings, as forges and mdbook spell them."""
    seen: Counter[str] = Counter()
    found = set()
    for title in re.findall(r"^#{1,6} +(.*?) *$", strip_code(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def find_broken_links(page: Path, text: str) -> list[str]:
    """Return links within the repository whose target is missing. Web links are not followed."""
    wrong = []
    for link in find_links(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(f"{link} leads to nothing")
        elif anchor and anchor not in find_anchors(text if target == page else read_page(target)):
            wrong.append(f"{link} has no such heading")
    return wrong
