"""A disk that refuses: the op says so, RAM is as it was, and later it goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.memory import Add, Memory
from tests.memory.samples import files_beside, kept

# A limit on the size of files is a full disk that comes and goes as the child likes.
FULL = """
import resource, signal, sys
from pathlib import Path
from crabtalk.memory import Add, Alias, Memory, Remove, Rename, StoreError, Update

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def refused(act, *arguments):
    try:
        act(*arguments)
    except StoreError as error:
        return str(error)
    raise SystemExit(f"{act} {arguments} went through")
"""

APPLY = (
    FULL
    + """
memory = Memory.open(path)
memory.apply(Add("coffee", "two sugars", ("cup",)))
memory.apply(Add("tea", "none"))
before = memory.entries(), memory.search("sugars none"), memory.statistics()
journal = path.with_name(path.name + ".journal").read_bytes()
for room in range(0, 40):
    limit(len(journal) + room)
    for op in (
        Add("large", "x" * 100),
        Update("coffee", "y" * 100),
        Rename("coffee", "z" * 100),
        Alias("tea", ("pot" * 40,)),
    ):
        said = refused(memory.apply, op)
        assert "nothing has changed, so free some space" in said, said
        assert (memory.entries(), memory.search("sugars none"), memory.statistics()) == before
        assert path.with_name(path.name + ".journal").read_bytes() == journal
limit(resource.RLIM_INFINITY)
memory.apply(Add("later", "there is room again"))
"""
)

FOLD = (
    FULL
    + """
import logging
logging.basicConfig(level=logging.WARNING)
memory = Memory.open(path)
for number in range(3):
    memory.apply(Add(f"note {number}", "x" * 1000))
before, snapshot = memory.entries(), path.read_bytes()
limit(1500)
refused(memory.checkpoint)
assert path.read_bytes() == snapshot
assert memory.entries() == before
refused(memory.replace, [])  # no room for the line that names the next snapshot
limit(resource.RLIM_INFINITY)
memory.apply(Add("later", "there is room again"))
limit(1500)
memory.close()
names = sorted(file.name for file in path.parent.iterdir())
assert names == [path.name, path.name + ".journal", path.name + ".sums"]
"""
)

FIRST = (
    FULL
    + """
memory = Memory.open(path)
limit(10)
refused(memory.apply, Add("first", "x" * 100))
assert memory.entries() == []
limit(150)
memory.apply(Add("a", "b"))
assert len(memory.entries()) == 1
"""
)


def run(script: str, path: Path) -> str:
    child = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    return child.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "crab.crmem"


@pytest.mark.req("memory.failed_write")
def test_a_write_that_fails_leaves_ram_and_disk_as_they_were(path: Path) -> None:
    run(APPLY, path)
    assert [entry.name for entry in kept(path)] == ["coffee", "tea", "later"]


@pytest.mark.req("memory.failed_write")
def test_a_first_write_that_fails_leaves_nothing(path: Path) -> None:
    run(FIRST, path)
    assert [entry.name for entry in kept(path)] == ["a"]


@pytest.mark.req("memory.failed_write")
def test_a_fold_that_fails_loses_nothing_and_neither_does_closing(path: Path) -> None:
    said = run(FOLD, path)
    assert "crab.crmem could not be folded, its journal stays" in said
    with Memory.open(path) as memory:
        names = [entry.name for entry in memory.entries()]
        assert names == ["note 0", "note 1", "note 2", "later"]
        memory.apply(Add("then", ""))
    assert len(kept(path)) == 5
    assert files_beside(path) == {path.name}
