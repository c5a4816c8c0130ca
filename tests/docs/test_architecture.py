"""The architecture page: every function it links to exists, under that name, in that file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
CODE_LINK = re.compile(r"\[`([\w.]+)`\]\((\.\./[\w/.]+\.py)\)")


def list_links() -> list[tuple[str, str]]:
    return sorted(set(CODE_LINK.findall(PAGE.read_text(encoding="utf-8"))))


def list_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """The qualified names of functions, classes and constants."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from list_definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id
        elif isinstance(node, ast.Assign):
            yield from (
                prefix + target.id for target in node.targets if isinstance(target, ast.Name)
            )


def test_the_page_follows_the_code_through_all_rooms() -> None:
    rooms = {path.split("/")[3] for _, path in list_links() if path.startswith("../src/")}
    expected = {"client", "protocol", "transport", "daemon", "hooks", "policy", "mcp", "runtime"}
    assert expected | {"search", "storage", "model"} <= rooms


@pytest.mark.parametrize(("name", "path"), list_links())
def test_a_linked_function_exists(name: str, path: str) -> None:
    file = (PAGE.parent / path).resolve()
    assert file.is_file(), f"{path} is gone; link to where {name} is now"
    definitions = set(list_definitions(ast.parse(file.read_text(encoding="utf-8")).body))
    assert name in definitions, f"{name} is not in {path}; link to where it is now"
