"""Files: untrusted names, and folders with a size limit."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.gateway import Attachment, Chat, GatewayError, Person, Update
from crabtalk.gateway.sender_files import SenderFiles, make_slug, prune_inbox, sanitize_file_name
from crabtalk.protocol import get_sender_folder
from tests.gateway.gateway_world import PIGEON_MODULE


class FilesOnlyService(PIGEON_MODULE.Pigeon):  # type: ignore[name-defined,misc]
    """A service that only has files."""

    def __init__(self, data: bytes = b"sand") -> None:
        self.data = data

    async def fetch(self, attachment: Attachment, path: Path) -> None:
        path.write_bytes(self.data)


def make_file_update(*names: str, key: str = "u1", size: int = 4) -> Update:
    files = tuple(Attachment(f"f-{name}", name, size, "text/plain") for name in names)
    return Update(key, Chat("7"), Person("7", "Ann"), "look", files)


@given(st.text())
def test_any_name_becomes_a_safe_file_name(name: str) -> None:
    name_made = sanitize_file_name(name)
    assert name_made
    assert name_made not in (".", "..")
    assert not set(name_made) & set('/\\\0<>:"|?*')
    assert not name_made.startswith(".")
    assert len(name_made.encode()) < 200
    assert name_made.isprintable()


@given(st.text(), st.text())
def test_directories_of_different_senders_differ(first: str, second: str) -> None:
    assert (make_slug(first) == make_slug(second)) is (
        first.encode(errors="replace") == second.encode(errors="replace")
    )
    assert "/" not in make_slug(first)


@pytest.mark.req("gateways.files.in")
async def test_files_come_into_a_private_directory_under_their_names(tmp_path: Path) -> None:
    files = SenderFiles(tmp_path, FilesOnlyService())
    lines = await files.fetch_attachments("pg:7", make_file_update("a.txt", "../a.txt", ".bashrc"))
    paths = [Path(line.removeprefix("- ")) for line in lines]
    assert [path.name for path in paths] == ["a.txt", "1-a.txt", "2-bashrc"]
    assert all(path.read_bytes() == b"sand" for path in paths)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths)
    for above in (paths[0].parent, paths[0].parents[1], paths[0].parents[2], tmp_path / "files"):
        assert above.stat().st_mode & 0o777 == 0o700
    os.utime(paths[0], (1, 1))
    assert (
        await files.fetch_attachments("pg:7", make_file_update("a.txt", "../a.txt", ".bashrc"))
        == lines
    )
    assert paths[0].stat().st_mtime == 1, "what had come before a crash is not fetched again"


@pytest.mark.req("gateways.bounds.files")
async def test_a_file_that_is_too_large_is_not_stored(tmp_path: Path) -> None:
    files = SenderFiles(tmp_path, FilesOnlyService(b"x" * 100), max_bytes=50)
    (line,) = await files.fetch_attachments("pg:7", make_file_update("a.txt", size=100))
    assert line == "- a.txt: not fetched, larger than 50 bytes"
    (line,) = await files.fetch_attachments("pg:7", make_file_update("b.txt", size=0))
    assert line == "- b.txt: not kept, larger than 50 bytes"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.req("gateways.bounds.files")
async def test_the_oldest_files_of_a_full_inbox_are_removed(tmp_path: Path) -> None:
    files = SenderFiles(tmp_path, FilesOnlyService(b"x" * 100), max_inbox_bytes=350)
    for number in range(10):
        (line,) = await files.fetch_attachments("pg:7", make_file_update("a.txt", key=f"u{number}"))
        os.utime(Path(line.removeprefix("- ")).parent, (number, number))
    inbox = files.directory_for("pg:7") / "inbox"
    assert sum(path.stat().st_size for path in inbox.rglob("a.txt")) <= 350
    assert Path(line.removeprefix("- ")).is_file()
    prune_inbox(Path(line.removeprefix("- ")).parent, 0)
    assert Path(line.removeprefix("- ")).is_file(), "what came last always stays"


@pytest.mark.req("trust.gateways.files")
async def test_files_are_in_their_senders_folder_and_old_files_are_moved_there(
    tmp_path: Path,
) -> None:
    files = SenderFiles(tmp_path, FilesOnlyService())
    old_folder = tmp_path / "pigeon" / "files" / make_slug("pg:7")
    (old_folder / "inbox" / "u0").mkdir(parents=True)
    (old_folder / "inbox" / "u0" / "old.txt").write_text("low water")
    (line,) = await files.fetch_attachments("pg:7", make_file_update("a.txt"))
    folder = get_sender_folder(tmp_path, "pg:7")
    assert Path(line.removeprefix("- ")).is_relative_to(folder)
    assert (folder / "inbox" / "u0" / "old.txt").read_text() == "low water"
    # A path in an old conversation leads into the sender's folder, also when it is resolved.
    assert (old_folder / "inbox" / "u0" / "old.txt").resolve().is_relative_to(folder)
    assert files.resolve_outgoing("pg:7", str(old_folder / "inbox" / "u0" / "old.txt")).is_file()
    assert files.directory_for("pg:8") != folder
    assert await files.prepare_directory("pg:7") == folder


@pytest.mark.req("trust.gateways.files")
async def test_an_old_folder_is_merged_into_an_existing_one_without_replacing_files(
    tmp_path: Path,
) -> None:
    files = SenderFiles(tmp_path, FilesOnlyService())
    old_folder, folder = (
        tmp_path / "pigeon" / "files" / make_slug("pg:7"),
        files.directory_for("pg:7"),
    )
    for target, text in ((old_folder, "old"), (folder, "new")):
        target.mkdir(parents=True)
        (target / "both.txt").write_text(text)
        (target / f"{text}.txt").write_text(text)
    await files.prepare_directory("pg:7")
    assert (folder / "both.txt").read_text() == "new"
    assert (folder / "old.txt").read_text() == "old"
    assert (old_folder / "both.txt").read_text() == "old"


@pytest.mark.req("gateways.files.out")
async def test_only_a_file_of_the_conversation_may_be_sent(tmp_path: Path) -> None:
    service = FilesOnlyService()
    service.limits = replace(service.limits, upload=10)
    files = SenderFiles(tmp_path, service)
    directory = await files.prepare_directory("pg:7")
    other_folder = await files.prepare_directory("pg:8")
    (directory / "a.txt").write_text("sand")
    (directory / "large.txt").write_text("x" * 11)
    (other_folder / "b.txt").write_text("secret")
    (directory / "link.txt").symlink_to(other_folder / "b.txt")
    assert files.resolve_outgoing("pg:7", "a.txt") == directory / "a.txt"
    assert files.resolve_outgoing("pg:7", str(directory / "a.txt")) == directory / "a.txt"
    for path in (
        "link.txt",
        str(other_folder / "b.txt"),
        "../b.txt",
        "nothing.txt",
        "",
        "large.txt",
        "\0",
    ):
        with pytest.raises(GatewayError):
            files.resolve_outgoing("pg:7", path)
