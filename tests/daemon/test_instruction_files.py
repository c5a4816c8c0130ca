"""Instructions: those of the home and of the directories down to a run's, cut to size."""

import asyncio
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk.daemon.config.instruction_files import MAX_CACHED_FILES, InstructionLoader

# What it shows is decided above the loop.
pytestmark = pytest.mark.one_loop


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def instructions(home: Path) -> InstructionLoader:
    home.mkdir()
    return InstructionLoader(home)


def write_instructions(directory: Path, text: str, name: str = "Crab.md") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path


def rewrite_unseen(path: Path, text: str) -> None:
    """Other words in the same file, with its size and times."""
    before = path.stat()
    assert len(text.encode()) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.req("instructions.layers")
async def test_the_homes_come_first_then_the_outermost_and_the_innermost_last(
    instructions: InstructionLoader, home: Path, project: Path
) -> None:
    write_instructions(home, "Of the home.\n")
    write_instructions(project, "Of the project.\n\nTwo paragraphs.\n\n")
    write_instructions(project / "a" / "b", "\nOf b.")
    assert await instructions.load(project / "a" / "b") == (
        "Of the home.\n\nOf the project.\n\nTwo paragraphs.\n\nOf b."
    )
    assert await instructions.load(project / "a") == (
        "Of the home.\n\nOf the project.\n\nTwo paragraphs."
    )


async def test_without_any_file_there_are_none(
    instructions: InstructionLoader, project: Path
) -> None:
    assert await instructions.load(project) == ""


@pytest.mark.req("instructions.layers")
async def test_agents_md_is_read_where_a_directory_has_no_crab_md(
    instructions: InstructionLoader, project: Path
) -> None:
    write_instructions(project, "Crab of the project.")
    write_instructions(project, "Agents of the project.", "AGENTS.md")
    write_instructions(project / "a", "Agents of a.", "AGENTS.md")
    assert await instructions.load(project / "a") == "Crab of the project.\n\nAgents of a."


async def test_the_home_has_no_agents_md(
    instructions: InstructionLoader, home: Path, project: Path
) -> None:
    write_instructions(home, "Agents.", "AGENTS.md")
    assert await instructions.load(project) == ""


async def test_an_empty_crab_md_says_nothing_and_silences_agents_md(
    instructions: InstructionLoader, project: Path
) -> None:
    write_instructions(project, "Of the project.")
    write_instructions(project / "a", " \n\t\n")
    write_instructions(project / "a", "Agents of a.", "AGENTS.md")
    assert await instructions.load(project / "a") == "Of the project."


async def test_directories_in_the_home_have_no_say(
    instructions: InstructionLoader, home: Path, project: Path
) -> None:
    write_instructions(home, "Of the home.")
    write_instructions(home / "skills" / "x", "Of a skill.")
    (project / "link").symlink_to(home / "skills")
    assert await instructions.load(home) == "Of the home."
    assert await instructions.load(home / "skills" / "x") == "Of the home."
    assert await instructions.load(project / "link" / "x") == "Of the home."


async def test_a_home_in_a_project_hears_the_project(tmp_path: Path) -> None:
    home = tmp_path / "project" / "home"
    write_instructions(home, "Of the home.")
    write_instructions(tmp_path / "project", "Of the project.")
    write_instructions(home / "work", "Not this.")
    found = await InstructionLoader(home).load(home / "work")
    assert found == "Of the home.\n\nOf the project."


async def test_a_file_reached_by_several_links_is_said_once(
    instructions: InstructionLoader, home: Path, project: Path
) -> None:
    write_instructions(project, "Of the project.")
    (project / "again").symlink_to(project)
    write_instructions(project / "sub", "Of sub.")
    (project / "sub" / "deep").mkdir()
    (project / "sub" / "deep" / "Crab.md").symlink_to(project / "Crab.md")
    cwd = project / "again" / "again" / "sub" / "deep"
    assert await instructions.load(cwd) == "Of the project.\n\nOf sub."
    (home / "Crab.md").symlink_to(project / "Crab.md")
    assert await instructions.load(project) == "Of the project."


async def test_dots_are_followed_where_they_really_lead(
    instructions: InstructionLoader, project: Path, tmp_path: Path
) -> None:
    write_instructions(project, "Of the project.")
    write_instructions(project / "a", "Of a.")
    write_instructions(tmp_path / "elsewhere", "Of elsewhere.")
    (tmp_path / "elsewhere" / "in").mkdir()
    (project / "a" / "link").symlink_to(tmp_path / "elsewhere" / "in")
    assert await instructions.load(project / "a" / "link" / "..") == "Of elsewhere."


async def test_a_directory_that_is_gone_leaves_those_above_it(
    instructions: InstructionLoader, project: Path
) -> None:
    write_instructions(project, "Of the project.")
    inner = write_instructions(project / "a", "One.")
    assert await instructions.load(project / "a") == "Of the project.\n\nOne."
    (project / "a").rename(project / "b")
    assert await instructions.load(project / "a" / "x") == "Of the project."
    (project / "b").rename(project / "a")
    rewrite_unseen(inner, "Two.")
    assert await instructions.load(project / "a") == "Of the project.\n\nTwo."


@pytest.mark.parametrize(
    "name", ["x/" * 100_000, "x" * 300, "\0"], ids=["deep", "long", "not a name"]
)
async def test_a_path_that_cannot_be_is_no_error(
    name: str, instructions: InstructionLoader, project: Path
) -> None:
    write_instructions(project, "Of the project.")
    assert await instructions.load(project / name) == "Of the project."


@pytest.mark.req("instructions.bounded")
async def test_a_file_is_read_again_only_when_it_changed(
    instructions: InstructionLoader, project: Path
) -> None:
    path = write_instructions(project, "One.")
    assert await instructions.load(project) == "One."
    rewrite_unseen(path, "Two.")
    assert await instructions.load(project) == "One."
    os.utime(path, ns=(0, 0))
    assert await instructions.load(project) == "Two."
    path.write_text("Three.")
    os.utime(path, ns=(0, 0))
    assert await instructions.load(project) == "Three."
    other = write_instructions(project, "Seven.", "other")
    os.utime(other, ns=(0, 0))
    other.replace(path)
    assert await instructions.load(project) == "Seven."


async def test_a_file_that_was_removed_is_forgotten(
    instructions: InstructionLoader, project: Path
) -> None:
    path = write_instructions(project, "One.")
    assert await instructions.load(project) == "One."
    path.rename(project / "aside")
    assert await instructions.load(project) == ""
    (project / "aside").rename(path)
    rewrite_unseen(path, "Two.")
    assert await instructions.load(project) == "Two."


async def test_only_the_files_used_last_are_remembered(
    instructions: InstructionLoader, project: Path
) -> None:
    paths = [
        write_instructions(project / str(number), "One.") for number in range(MAX_CACHED_FILES + 1)
    ]
    for path in paths[:-1]:
        await instructions.load(path.parent)
    await instructions.load(paths[0].parent)
    await instructions.load(paths[-1].parent)
    for path in (paths[0], paths[1], paths[-1]):
        rewrite_unseen(path, "Two.")
    assert await instructions.load(paths[0].parent) == "One."
    assert await instructions.load(paths[-1].parent) == "One."
    assert await instructions.load(paths[1].parent) == "Two."


async def test_what_does_not_fit_is_cut_and_says_so(home: Path, project: Path) -> None:
    write_instructions(project, "é" * 300)
    found = await InstructionLoader(home, limit=400).load(project)
    kept, note = found.split("\n")
    assert len(found.encode()) in (399, 400)
    assert kept == "é" * len(kept)
    left_out = 600 - len(kept.encode())
    assert note == f"[{project / 'Crab.md'} was cut: {left_out} bytes left out]"


async def test_the_innermost_get_the_room_and_the_others_a_note(home: Path, project: Path) -> None:
    write_instructions(home, "h" * 2000)
    write_instructions(project, "p" * 2000)
    write_instructions(project / "a", "a" * 2000)
    found = await InstructionLoader(home, limit=3000).load(project / "a")
    first, second, third = found.split("\n\n")
    assert first == f"[{home / 'Crab.md'} was cut: 2000 bytes left out]"
    assert re.fullmatch(rf"p+\n\[{project}/Crab.md was cut: \d+ bytes left out\]", second)
    assert third == "a" * 2000
    assert 2990 < len(found) <= 3000


async def test_what_is_shorter_than_its_note_stays(home: Path, project: Path) -> None:
    write_instructions(home, "Be kind.")
    write_instructions(project, "p" * 2000)
    found = await InstructionLoader(home, limit=1000).load(project)
    assert found.startswith("Be kind.\n\nppp")
    assert len(found) == 1000


async def test_a_file_without_end_is_read_no_further_than_the_limit(
    instructions: InstructionLoader, project: Path
) -> None:
    path = write_instructions(project, "Begin.")
    os.truncate(path, 1 << 40)
    found = await instructions.load(project)
    assert found.startswith("Begin.\0")
    assert len(found) == 64 * 1024
    left_out = (1 << 40) - found.index("\n")
    assert found.endswith(f"\n[{path} was cut: {left_out} bytes left out]")


async def test_bytes_that_are_no_text_are_replaced(
    instructions: InstructionLoader, project: Path
) -> None:
    (project / "Crab.md").write_bytes(b"\xef\xbb\xbfcaf\xe9 \xff!\n")
    assert await instructions.load(project) == "caf\ufffd \ufffd!"


async def test_names_of_directories_cannot_break_the_note(home: Path, project: Path) -> None:
    directory = project / os.fsdecode(b"a\nb\xff")
    write_instructions(directory, "x" * 600)
    found = await InstructionLoader(home, limit=500).load(directory)
    assert "project/a b\ufffd/Crab.md was cut:" in found.split("\n")[1]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_endless_link(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [make_fifo, make_directory, make_endless_link])
async def test_what_is_no_file_is_left_out_with_one_warning_from_a_thread(
    make: Callable[[Path], None],
    instructions: InstructionLoader,
    project: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make(project / "Crab.md")
    write_instructions(project, "Not in its place.", "AGENTS.md")
    write_instructions(project / "a", "Of a.")
    with caplog.at_level(logging.WARNING):
        assert await instructions.load(project / "a") == "Of a."
        assert await instructions.load(project / "a") == "Of a."
    [record] = caplog.records
    assert f"{project / 'Crab.md'} cannot be read and is left out: " in record.getMessage()
    assert record.thread != threading.get_ident()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
async def test_a_file_that_may_not_be_read_is_read_as_soon_as_it_may(
    instructions: InstructionLoader, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_instructions(project, "Of the project.")
    path.chmod(0)
    assert await instructions.load(project) == ""
    assert "Permission denied" in caplog.text
    path.chmod(0o600)
    assert await instructions.load(project) == "Of the project."


# As they are shown: without a mark of byte order, or white space around them.
WORDS = st.text(max_size=300).map(lambda text: text.lstrip("\ufeff").strip())


@pytest.mark.req("instructions.bounded")
@settings(max_examples=60)
@given(
    texts=st.lists(st.none() | WORDS, min_size=1, max_size=5),
    limit=st.integers(0, 1500),
)
def test_there_are_never_more_bytes_than_the_limit_and_nothing_is_cut_in_silence(
    texts: list[str | None], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        home, cwd = Path(root) / "home", Path(root)
        home.mkdir()
        for number, text in enumerate(texts):
            cwd /= str(number)
            cwd.mkdir()
            if text is not None:
                (cwd / "Crab.md").write_bytes(text.encode())
        found = asyncio.run(InstructionLoader(home, limit=limit).load(cwd))
    joined = "\n\n".join(text for text in texts if text)
    assert len(found.encode()) <= limit
    if len(joined.encode()) <= limit:
        assert found == joined
    elif limit > 1000:  # room for a note in the place of each
        assert found.count("was cut: ") >= 1
        shown = re.sub(r"\n?\[/\S+ was cut: \d+ bytes left out\]", "", found)
        left_out = sum(map(int, re.findall(r"was cut: (\d+) bytes", found)))
        assert len(joined.encode()) - left_out == len(shown.encode())
