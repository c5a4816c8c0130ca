"""Every Python block in the README and in the book runs unchanged as a program."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pytest

from tests.docs.book_pages import PageCodeBlock, find_blocks, list_pages
from tests.docs.reader_sandbox import ReaderSandbox, open_sandbox

BLOCKS = [block for page in list_pages() for block in find_blocks(page, "python")]
# The program around a block of only a few lines.
COROUTINE_TEMPLATE = (
    "import asyncio\nimport crabtalk\n\nasync def main():\n{}\nasyncio.run(main())\n"
)


@dataclass(frozen=True, slots=True)
class BlockRun:
    """How to run a block, and the output to expect."""

    says: str = ""
    serves: str = ""  # it runs until it is stopped, and prints this first
    words: tuple[str, ...] = ()
    skip_reason: str = ""  # why it is not run; its imports still are


BLOCK_RUNS = {
    "README.md:1": BlockRun("heard: What do crabs dream of?"),
    "README.md:2": BlockRun("heard: And what do they eat?"),
    "docs/components.md:1": BlockRun(serves="is ready"),
    "docs/components.md:2": BlockRun(serves="is ready"),
    "docs/components.md:3": BlockRun(
        skip_reason="it would install a unit here; see tests/service/test_service_managers.py"
    ),
    "docs/embedding.md:1": BlockRun("TextDelta(text='hi')"),
    # tests/gateway tests the whole program.
    "docs/gateways.md:1": BlockRun("pair", words=("--help",)),
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReaderSandbox]:
    """A sandbox with a running daemon and with the named files of the pages."""
    with open_sandbox(tmp_path_factory.mktemp("reader")) as sandbox:
        for block in BLOCKS:
            find_program_path(block, sandbox).write_text(complete_program(block.code, sandbox))
        sandbox.run_shell('crabtalk ask "hello"')
        yield sandbox


@pytest.mark.req("book.python")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs_unchanged(block: PageCodeBlock, reader: ReaderSandbox) -> None:
    run = BLOCK_RUNS.get(str(block), BlockRun())
    program = find_program_path(block, reader)
    if run.skip_reason:
        program.write_text(extract_imports(block.code))
    command: list[str | Path] = [sys.executable, program, *run.words]
    if run.serves:
        assert run.serves in reader.serve_until(command, run.serves)
    else:
        assert run.says in reader.run_command(command)


def find_program_path(block: PageCodeBlock, reader: ReaderSandbox) -> Path:
    """Return the file of a block, named by its docstring: `coin: tosses one` gives coin.py."""
    docstring = ast.get_docstring(parse_block(block.code)) or ""
    word = docstring.partition(":")[0]
    name = word if word.isidentifier() else f"block_{BLOCKS.index(block)}"
    return reader.directory / f"{name}.py"


def complete_program(code: str, reader: ReaderSandbox) -> str:
    """Add the program around a part of a coroutine, and use the sandbox's model."""
    code = code.replace("http://localhost:11434/v1", reader.model).replace("qwen3", "scripted")
    return code if is_program(code) else COROUTINE_TEMPLATE.format(indent(code, "    "))


def is_program(code: str) -> bool:
    try:
        compile(code, "block", "exec")
    except SyntaxError:
        return False
    return True


def parse_block(code: str) -> ast.Module:
    return ast.parse(code if is_program(code) else COROUTINE_TEMPLATE.format(indent(code, "    ")))


def extract_imports(code: str) -> str:
    kinds = (ast.Import, ast.ImportFrom)
    return "\n".join(
        ast.unparse(node) for node in parse_block(code).body if isinstance(node, kinds)
    )


@pytest.mark.req("book.python")
def test_at_most_one_block_is_not_run() -> None:
    known = {str(block) for block in BLOCKS}
    assert BLOCK_RUNS.keys() <= known
    assert sum(bool(run.skip_reason) for run in BLOCK_RUNS.values()) <= 1
    assert len(BLOCKS) > 5


@pytest.mark.req("book.python")
def test_a_block_that_fails_is_noticed(reader: ReaderSandbox, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(complete_program("await crabtalk.connect().no_such_thing()\n", reader))
    done = subprocess.run([sys.executable, wrong], capture_output=True, check=False)
    assert done.returncode == 1
    with pytest.raises(AssertionError, match="no_such_thing"):
        reader.run_command([sys.executable, wrong])
