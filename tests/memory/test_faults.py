"""A disk that refuses writes: the operation fails, RAM is unchanged, and later writes succeed."""

import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.memory import AddEntry, Memory
from tests.memory.memory_samples import list_files, read_entries

# A limit on file sizes acts as a full disk that the child process can turn on and off.
FULL = """
import resource, signal, sys
from pathlib import Path
from crabtalk.memory import AddEntry, Memory, MemoryStoreError, RemoveEntry
from crabtalk.memory import RenameEntry, SetAliases, UpdateEntry

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def refused(act, *arguments):
    try:
        act(*arguments)
    except MemoryStoreError as error:
        return str(error)
    raise SystemExit(f"{act} {arguments} went through")
"""

APPLY = (
    FULL
    + """
memory = Memory.open(path)
memory.apply(AddEntry("coffee", "two sugars", ("cup",)))
memory.apply(AddEntry("tea", "none"))
before = memory.entries(), memory.search("sugars none"), memory.statistics()
journal = path.with_name(path.name + ".journal").read_bytes()
for room in range(0, 40):
    limit(len(journal) + room)
    for op in (
        AddEntry("large", "x" * 100),
        UpdateEntry("coffee", "y" * 100),
        RenameEntry("coffee", "z" * 100),
        SetAliases("tea", ("pot" * 40,)),
    ):
        message = refused(memory.apply, op)
        assert "nothing has changed, so free some space" in message, message
        assert (memory.entries(), memory.search("sugars none"), memory.statistics()) == before
        assert path.with_name(path.name + ".journal").read_bytes() == journal
limit(resource.RLIM_INFINITY)
memory.apply(AddEntry("later", "there is room again"))
"""
)

FOLD = (
    FULL
    + """
import logging
logging.basicConfig(level=logging.WARNING)
memory = Memory.open(path)
for number in range(3):
    memory.apply(AddEntry(f"note {number}", "x" * 1000))
before, snapshot = memory.entries(), path.read_bytes()
limit(1500)
refused(memory.checkpoint)
assert path.read_bytes() == snapshot
assert memory.entries() == before
refused(memory.replace, [])  # no room for the line that names the next snapshot
limit(resource.RLIM_INFINITY)
memory.apply(AddEntry("later", "there is room again"))
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
refused(memory.apply, AddEntry("first", "x" * 100))
assert memory.entries() == []
limit(150)
memory.apply(AddEntry("a", "b"))
assert len(memory.entries()) == 1
"""
)


def run_script(script: str, path: Path) -> str:
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
    run_script(APPLY, path)
    assert [entry.name for entry in read_entries(path)] == ["coffee", "tea", "later"]


@pytest.mark.req("memory.failed_write")
def test_a_first_write_that_fails_leaves_nothing(path: Path) -> None:
    run_script(FIRST, path)
    assert [entry.name for entry in read_entries(path)] == ["a"]


@pytest.mark.req("memory.failed_write")
def test_a_failed_checkpoint_loses_nothing_and_neither_does_closing(path: Path) -> None:
    output = run_script(FOLD, path)
    assert "crab.crmem could not be folded, its journal stays" in output
    with Memory.open(path) as memory:
        names = [entry.name for entry in memory.entries()]
        assert names == ["note 0", "note 1", "note 2", "later"]
        memory.apply(AddEntry("then", ""))
    assert len(read_entries(path)) == 5
    assert list_files(path) == {path.name}
