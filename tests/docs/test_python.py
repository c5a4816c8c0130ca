"""Every block of Python in the README and in the book runs as it stands, as a program."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pytest

from tests.docs.pages import Block, blocks, book
from tests.docs.place import Place, place

BLOCKS = [block for page in book() for block in blocks(page, "python")]
# A block of a few lines leaves out what surrounds them.
AROUND = "import asyncio\nimport crabtalk\n\nasync def main():\n{}\nasyncio.run(main())\n"


@dataclass(frozen=True, slots=True)
class Played:
    """How a block is run, and what is seen of it."""

    says: str = ""
    serves: str = ""  # it runs until it is stopped, and has said this by then
    words: tuple[str, ...] = ()
    instead: str = ""  # why it is not run: then its imports alone are


PLAYED = {
    "README.md:1": Played("heard: What do crabs dream of?"),
    "README.md:2": Played("heard: And what do they eat?"),
    "docs/components.md:1": Played(serves="is ready"),
    "docs/components.md:2": Played(serves="is ready"),
    "docs/components.md:3": Played(
        instead="it would install a unit here; tests/component/test_managers.py plays managers"
    ),
    "docs/embedding.md:1": Played("TextDelta(text='hi')"),
    # Its own tests, tests/component/gateway, talk through it.
    "docs/gateways.md:1": Played("pair", words=("--help",)),
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """In a place where a daemon runs already, and what pages call by a name lies about."""
    with place(tmp_path_factory.mktemp("reader")) as made:
        for block in BLOCKS:
            program_of(block, made).write_text(whole(block.code, made))
        made.shell('crabtalk ask "hello"')
        yield made


@pytest.mark.req("book.python")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs_as_it_stands(block: Block, reader: Place) -> None:
    how = PLAYED.get(str(block), Played())
    program = program_of(block, reader)
    if how.instead:
        program.write_text(imports(block.code))
    command: list[str | Path] = [sys.executable, program, *how.words]
    if how.serves:
        assert how.serves in reader.served(command, how.serves)
    else:
        assert how.says in reader.said(command)


def program_of(block: Block, reader: Place) -> Path:
    """Its file: under the name that its first line says, `coin: tosses one`, or any other."""
    own = ast.get_docstring(parsed(block.code)) or ""
    word = own.partition(":")[0]
    name = word if word.isidentifier() else f"block_{BLOCKS.index(block)}"
    return reader.directory / f"{name}.py"


def whole(code: str, reader: Place) -> str:
    """With what surrounds a piece of a coroutine, and with the model there is here."""
    code = code.replace("http://localhost:11434/v1", reader.model).replace("qwen3", "scripted")
    return code if is_program(code) else AROUND.format(indent(code, "    "))


def is_program(code: str) -> bool:
    try:
        compile(code, "block", "exec")
    except SyntaxError:
        return False
    return True


def parsed(code: str) -> ast.Module:
    return ast.parse(code if is_program(code) else AROUND.format(indent(code, "    ")))


def imports(code: str) -> str:
    kinds = (ast.Import, ast.ImportFrom)
    return "\n".join(ast.unparse(node) for node in parsed(code).body if isinstance(node, kinds))


@pytest.mark.req("book.python")
def test_few_blocks_are_not_run_and_each_is_there() -> None:
    known = {str(block) for block in BLOCKS}
    assert PLAYED.keys() <= known
    assert sum(bool(how.instead) for how in PLAYED.values()) <= 1
    assert len(BLOCKS) > 5


@pytest.mark.req("book.python")
def test_a_block_that_fails_is_noticed(reader: Place, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(whole("await crabtalk.connect().no_such_thing()\n", reader))
    done = subprocess.run([sys.executable, wrong], capture_output=True, check=False)
    assert done.returncode == 1
    with pytest.raises(AssertionError, match="no_such_thing"):
        reader.said([sys.executable, wrong])
