"""InstructionLoader: files of the home and of a run's directories, cut to the limit."""

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

# The result does not depend on the event loop.
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
    """Change a file's text but not its size and times."""
    before = path.stat()
    assert len(text.encode()) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.req("instructions.layers")
async def test_the_homes_file_comes_first_and_the_innermost_last(
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


async def test_without_files_there_are_no_instructions(
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


async def test_agents_md_in_the_home_is_ignored(
    instructions: InstructionLoader, home: Path, project: Path
) -> None:
    write_instructions(home, "Agents.", "AGENTS.md")
    assert await instructions.load(project) == ""


async def test_an_empty_crab_md_hides_agents_md(
    instructions: InstructionLoader, project: Path
) -> None:
    write_instructions(project, "Of the project.")
    write_instructions(project / "a", " \n\t\n")
    write_instructions(project / "a", "Agents of a.", "AGENTS.md")
    assert await instructions.load(project / "a") == "Of the project."


async def test_files_in_directories_of_the_home_are_ignored(
    instructions: InstructionLoader, home: Path, project: Path
) -> None:
    write_instructions(home, "Of the home.")
    write_instructions(home / "skills" / "x", "Of a skill.")
    (project / "link").symlink_to(home / "skills")
    assert await instructions.load(home) == "Of the home."
    assert await instructions.load(home / "skills" / "x") == "Of the home."
    assert await instructions.load(project / "link" / "x") == "Of the home."


async def test_a_home_in_a_project_gets_the_projects_instructions(tmp_path: Path) -> None:
    home = tmp_path / "project" / "home"
    write_instructions(home, "Of the home.")
    write_instructions(tmp_path / "project", "Of the project.")
    write_instructions(home / "work", "Not this.")
    text = await InstructionLoader(home).load(home / "work")
    assert text == "Of the home.\n\nOf the project."


async def test_a_file_reached_by_several_links_is_included_once(
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


async def test_dot_dot_after_a_link_is_resolved(
    instructions: InstructionLoader, project: Path, tmp_path: Path
) -> None:
    write_instructions(project, "Of the project.")
    write_instructions(project / "a", "Of a.")
    write_instructions(tmp_path / "elsewhere", "Of elsewhere.")
    (tmp_path / "elsewhere" / "in").mkdir()
    (project / "a" / "link").symlink_to(tmp_path / "elsewhere" / "in")
    assert await instructions.load(project / "a" / "link" / "..") == "Of elsewhere."


async def test_files_above_a_missing_directory_are_still_used(
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
async def test_an_impossible_path_is_no_error(
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


async def test_only_the_latest_files_are_cached(
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


async def test_text_beyond_the_limit_is_cut_with_a_note(home: Path, project: Path) -> None:
    write_instructions(project, "é" * 300)
    text = await InstructionLoader(home, limit=400).load(project)
    beginning, note = text.split("\n")
    assert len(text.encode()) in (399, 400)
    assert beginning == "é" * len(beginning)
    left_out = 600 - len(beginning.encode())
    assert note == f"[{project / 'Crab.md'} was cut: {left_out} bytes left out]"


async def test_the_innermost_file_gets_the_room_and_the_others_a_note(
    home: Path, project: Path
) -> None:
    write_instructions(home, "h" * 2000)
    write_instructions(project, "p" * 2000)
    write_instructions(project / "a", "a" * 2000)
    text = await InstructionLoader(home, limit=3000).load(project / "a")
    first, second, third = text.split("\n\n")
    assert first == f"[{home / 'Crab.md'} was cut: 2000 bytes left out]"
    assert re.fullmatch(rf"p+\n\[{project}/Crab.md was cut: \d+ bytes left out\]", second)
    assert third == "a" * 2000
    assert 2990 < len(text) <= 3000


async def test_a_text_shorter_than_its_note_is_kept(home: Path, project: Path) -> None:
    write_instructions(home, "Be kind.")
    write_instructions(project, "p" * 2000)
    text = await InstructionLoader(home, limit=1000).load(project)
    assert text.startswith("Be kind.\n\nppp")
    assert len(text) == 1000


async def test_a_huge_file_is_read_only_up_to_the_limit(
    instructions: InstructionLoader, project: Path
) -> None:
    path = write_instructions(project, "Begin.")
    os.truncate(path, 1 << 40)
    text = await instructions.load(project)
    assert text.startswith("Begin.\0")
    assert len(text) == 64 * 1024
    left_out = (1 << 40) - text.index("\n")
    assert text.endswith(f"\n[{path} was cut: {left_out} bytes left out]")


async def test_invalid_utf_8_is_replaced(instructions: InstructionLoader, project: Path) -> None:
    (project / "Crab.md").write_bytes(b"\xef\xbb\xbfcaf\xe9 \xff!\n")
    assert await instructions.load(project) == "caf\ufffd \ufffd!"


async def test_names_of_directories_cannot_break_the_note(home: Path, project: Path) -> None:
    directory = project / os.fsdecode(b"a\nb\xff")
    write_instructions(directory, "x" * 600)
    text = await InstructionLoader(home, limit=500).load(directory)
    assert "project/a b\ufffd/Crab.md was cut:" in text.split("\n")[1]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_endless_link(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [make_fifo, make_directory, make_endless_link])
async def test_a_non_file_is_left_out_with_one_warning_from_a_thread(
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
async def test_an_unreadable_file_is_read_once_it_becomes_readable(
    instructions: InstructionLoader, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_instructions(project, "Of the project.")
    path.chmod(0)
    assert await instructions.load(project) == ""
    assert "Permission denied" in caplog.text
    path.chmod(0o600)
    assert await instructions.load(project) == "Of the project."


# As they are returned: without a byte order mark or surrounding white space.
WORDS = st.text(max_size=300).map(lambda text: text.lstrip("\ufeff").strip())


@pytest.mark.req("instructions.bounded")
@settings(max_examples=60)
@given(
    texts=st.lists(st.none() | WORDS, min_size=1, max_size=5),
    limit=st.integers(0, 1500),
)
def test_the_result_is_within_the_limit_and_every_cut_has_a_note(
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
        result = asyncio.run(InstructionLoader(home, limit=limit).load(cwd))
    joined = "\n\n".join(text for text in texts if text)
    assert len(result.encode()) <= limit
    if len(joined.encode()) <= limit:
        assert result == joined
    elif limit > 1000:  # room for a note about each file
        assert result.count("was cut: ") >= 1
        shown = re.sub(r"\n?\[/\S+ was cut: \d+ bytes left out\]", "", result)
        left_out = sum(map(int, re.findall(r"was cut: (\d+) bytes", result)))
        assert len(joined.encode()) - left_out == len(shown.encode())
