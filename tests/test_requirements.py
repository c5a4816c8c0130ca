"""Every requirement has a test, and tests only name requirements that exist."""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]


def load_requirements() -> dict[str, dict[str, str]]:
    return tomllib.loads((ROOT / "tests" / "requirements.toml").read_text())


def list_test_files() -> list[Path]:
    return sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("apps/*/tests/**/test_*.py")])


def find_requirement_ids(source: str) -> Iterator[str]:
    """The ids on the test functions of a file, from their own marks or from `pytestmark`."""
    tree = ast.parse(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies = [tree.body, *(node.body for node in classes)]
    tests = [node for body in bodies for node in body if is_test(node)]
    for test in tests:
        yield from find_mark_ids(test.decorator_list)
    for node in tree.body:
        if tests and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from find_mark_ids([node.value])


def is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.name.startswith("test_")


def find_mark_ids(marks: Iterable[ast.expr]) -> Iterator[str]:
    for node in (child for mark in marks for child in ast.walk(mark)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.req":
            (name,) = node.args
            if isinstance(name, ast.Constant):
                yield str(name.value)


def find_untested(known: set[str], named: set[str]) -> set[str]:
    return known - named


def find_unknown(known: set[str], named: set[str]) -> set[str]:
    return named - known


@cache
def list_tested_ids() -> set[str]:
    return {name for path in list_test_files() for name in find_requirement_ids(path.read_text())}


def test_every_requirement_is_shown_by_a_test() -> None:
    assert find_untested(set(load_requirements()), list_tested_ids()) == set()


def test_every_id_in_a_test_is_a_requirement() -> None:
    assert find_unknown(set(load_requirements()), list_tested_ids()) == set()


def test_every_requirement_has_a_text_and_a_source() -> None:
    for name, entry in load_requirements().items():
        assert entry.keys() == {"source", "text"}, name
        assert entry["source"], name
        assert entry["text"].endswith("."), name


def test_the_check_finds_both_faults() -> None:
    source = """
@pytest.mark.req("a.b")
@pytest.mark.parametrize("x", [1])
async def test_one(x): ...

@pytest.mark.req("not.a.test")
def helper(): ...
"""
    ids = set(find_requirement_ids(source))
    assert ids == {"a.b"}
    assert find_untested({"a.b", "c.d"}, ids) == {"c.d"}
    assert find_unknown({"c.d"}, ids) == {"a.b"}
