"""The book is complete: every page is in the summary, every link has a target, every decision has
its five parts, and the proofs it names exist."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from bench.__main__ import BENCHES
from tests.docs.book_pages import (
    BOOK,
    ROOT,
    find_anchors,
    find_broken_links,
    find_links,
    get_page_name,
    list_pages,
    read_page,
)

SUMMARY = read_page("docs/SUMMARY.md")
DECISIONS = sorted((BOOK / "decisions").glob("[0-9]*.md"))
DECISION_PARTS = ["Problem", "Chosen", "Why", "What it costs", "Proof"]
OTHER_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md"]


# ── Pages and links ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("book.order")
def test_every_page_has_one_place_in_the_book() -> None:
    listed = list(find_links(SUMMARY))
    there = [
        page.relative_to(BOOK).as_posix() for page in list_pages() if page.is_relative_to(BOOK)
    ]
    assert sorted(listed) == sorted(set(there) - {"SUMMARY.md"})


@pytest.mark.req("book.order")
def test_the_book_begins_with_an_introduction_the_quick_start_and_the_concepts() -> None:
    assert list(find_links(SUMMARY))[:3] == ["README.md", "quick-start.md", "concepts.md"]


@pytest.mark.parametrize(
    "page", [*list_pages(), *OTHER_PAGES, *sorted(ROOT.glob("apps/*/README.md"))], ids=get_page_name
)
@pytest.mark.req("book.links")
def test_every_link_has_a_target(page: Path) -> None:
    assert find_broken_links(page, read_page(page)) == []


@pytest.mark.req("book.links")
@pytest.mark.parametrize(
    "link",
    ["nowhere.md", "concepts.md#nothing", "#nothing", "../../../etc/passwd", "images/no.png"],
)
def test_a_link_without_a_target_is_noticed(link: str) -> None:
    assert find_broken_links(BOOK / "README.md", f"# Here\n\nSee [that]({link}).\n") != []


def test_a_link_in_code_does_not_count_but_one_around_code_does() -> None:
    text = (
        "`[no](nowhere.md)` and\n\n```text\n[no](nowhere.md)\n```\n\n[`yes`](concepts.md#guest)\n"
    )
    assert list(find_links(text)) == ["concepts.md#guest"]
    assert find_broken_links(BOOK / "README.md", text) == []


def test_headings_are_spelt_as_forges_do() -> None:
    text = "# A `b` c: d!\n\n## Same\n\n## Same\n\n### 11. Bounds\n\n```sh\n# no heading\n```\n"
    assert find_anchors(text) == {"a-b-c-d", "same", "same-1", "11-bounds"}


@pytest.mark.req("book.order")
def test_the_concepts_page_has_its_seven_headings() -> None:
    titles = re.findall(r"^## (.*)$", read_page("docs/concepts.md"), re.MULTILINE)
    words = ["Conversation", "Guest", "Memory", "Compaction", "Component", "Event", "Fleet"]
    assert titles == words


@pytest.mark.req("book.links")
def test_every_picture_is_on_some_page() -> None:
    shown = {Path(link).name for page in list_pages() for link in find_links(read_page(page))}
    assert {path.name for path in (BOOK / "images").iterdir()} <= shown


def test_the_book_can_be_built_by_mdbook_out_of_the_way() -> None:
    settings = tomllib.loads(read_page("docs/book.toml"))
    assert settings["book"]["src"] == "."
    assert settings["build"]["build-dir"].startswith("../.venv/"), "git must ignore it"


# ── Decisions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
@pytest.mark.req("book.decisions")
def test_a_decision_says_what_why_at_what_cost_and_what_proves_it(page: Path) -> None:
    text = read_page(page)
    title, *parts = re.split(r"^#+ (.*)\n", text, flags=re.MULTILINE)[1::2]
    assert title.startswith(f"{page.name[:3]}. ")
    assert parts == DECISION_PARTS
    assert all(part.strip() for part in re.split(r"^## .*\n", text, flags=re.MULTILINE)[1:])
    assert len(text.split()) < 450, "half a page"


@pytest.mark.req("book.decisions")
def test_decisions_are_numbered_on_and_listed() -> None:
    assert [int(page.name[:3]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert list(find_links(read_page("docs/decisions/README.md"))) == [
        page.name for page in DECISIONS
    ]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
@pytest.mark.req("book.decisions")
def test_the_proofs_of_a_decision_exist(page: Path) -> None:
    assert find_missing_proofs(read_page(page).partition("## Proof\n")[2]) == []


@pytest.mark.req("book.decisions")
@pytest.mark.parametrize(
    "proof",
    [
        "- `tests/docs/test_book.py::test_that_does_not_exist`",
        "- `tests/docs/test_nothing.py::test_it`",
        "- `python -m bench nothing`",
        '- the contract "Anything goes" in `pyproject.toml`',
        "- trust us",
        "",
    ],
)
def test_a_missing_proof_is_noticed(proof: str) -> None:
    assert find_missing_proofs(proof) != []


def find_missing_proofs(proofs: str) -> list[str]:
    """Return the proofs in a list that do not exist. An empty list is an error too."""
    found = [line for line in proofs.strip().splitlines() if not proof_exists(line)]
    return found if proofs.strip() else ["there is no proof"]


def proof_exists(line: str) -> bool:
    if test := re.fullmatch(r"- `([\w/]+\.py)::(test_\w+)`", line):
        return (ROOT / test[1]).is_file() and test[2] in list_functions(ROOT / test[1])
    if bench := re.fullmatch(r"- `python -m bench ([\w ]+)`", line):
        return set(bench[1].split()) <= set(BENCHES)
    if contract := re.fullmatch(r'- the contract "(.+)" in `pyproject.toml`', line):
        linter = tomllib.loads(read_page("pyproject.toml"))["tool"]["importlinter"]
        return contract[1] in {each["name"] for each in linter["contracts"]}
    return False


def list_functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}
