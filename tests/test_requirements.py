"""Every requirement has a test, and every test that names one names one that exists."""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]


def requirements() -> dict[str, dict[str, str]]:
    return tomllib.loads((ROOT / "tests" / "requirements.toml").read_text())


def files_with_tests() -> list[Path]:
    return sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("apps/*/tests/**/test_*.py")])


def named_in(source: str) -> Iterator[str]:
    """The ids that the test functions of a file carry, each by itself or all by `pytestmark`."""
    tree = ast.parse(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    places = [tree.body, *(each.body for each in classes)]
    tests = [node for place in places for node in place if is_test(node)]
    for test in tests:
        yield from ids_of(test.decorator_list)
    for node in tree.body:
        if tests and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from ids_of([node.value])


def is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.name.startswith("test_")


def ids_of(marks: Iterable[ast.expr]) -> Iterator[str]:
    for node in (each for mark in marks for each in ast.walk(mark)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.req":
            (name,) = node.args
            if isinstance(name, ast.Constant):
                yield str(name.value)


def unshown(known: set[str], named: set[str]) -> set[str]:
    return known - named


def unknown(known: set[str], named: set[str]) -> set[str]:
    return named - known


@cache
def named() -> set[str]:
    return {name for path in files_with_tests() for name in named_in(path.read_text())}


def test_every_requirement_is_shown_by_a_test() -> None:
    assert unshown(set(requirements()), named()) == set()


def test_every_id_in_a_test_is_a_requirement() -> None:
    assert unknown(set(requirements()), named()) == set()


def test_every_requirement_says_what_and_where_from() -> None:
    for name, entry in requirements().items():
        assert entry.keys() == {"source", "text"}, name
        assert entry["source"], name
        assert entry["text"].endswith("."), name


def test_the_check_sees_both_faults() -> None:
    source = """
@pytest.mark.req("a.b")
@pytest.mark.parametrize("x", [1])
async def test_one(x): ...

@pytest.mark.req("not.a.test")
def helper(): ...
"""
    ids = set(named_in(source))
    assert ids == {"a.b"}
    assert unshown({"a.b", "c.d"}, ids) == {"c.d"}
    assert unknown({"c.d"}, ids) == {"a.b"}
