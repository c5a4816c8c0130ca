"""Port files: what readers see of running components, and of dead ones."""

import os
import socket
import threading
from pathlib import Path

import pytest

from crabtalk.service import ComponentError, PortFile, list_port_files


@pytest.fixture
def run(home: Path) -> Path:
    directory = home / "run"
    directory.mkdir(parents=True)
    return directory


@pytest.mark.req("component.port_file")
def test_the_file_exists_exactly_while_it_is_published(home: Path, run: Path) -> None:
    file = PortFile.for_component(home, "dice")
    with file.publish(4711):
        assert (run / "dice.port").read_bytes() == b"4711\n"
        assert file.read_port() == 4711
    assert not file.path.exists()


@pytest.mark.req("component.port_file")
def test_a_reader_never_sees_half_a_file(home: Path, run: Path) -> None:
    file = PortFile.for_component(home, "dice")
    contents: set[bytes] = set()
    is_done = threading.Event()

    def read_repeatedly() -> None:
        while not is_done.is_set():
            if file.path.exists():
                try:
                    contents.add(file.path.read_bytes())
                except FileNotFoundError:
                    continue

    reader = threading.Thread(target=read_repeatedly)
    reader.start()
    try:
        for port in (1, 65535) * 50:
            with file.publish(port):
                pass
    finally:
        is_done.set()
        reader.join()
    assert contents <= {b"1\n", b"65535\n"}


@pytest.mark.req("component.port_file.removed")
def test_a_file_that_another_process_has_replaced_stays(home: Path, run: Path) -> None:
    file = PortFile.for_component(home, "dice")
    with file.publish(4711):
        file.path.write_text("4712\n")
    assert file.read_port() == 4712


@pytest.mark.req("component.port_file.removed")
def test_the_file_is_removed_when_the_component_fails(home: Path, run: Path) -> None:
    file = PortFile.for_component(home, "dice")
    with pytest.raises(ZeroDivisionError), file.publish(4711):
        _ = 1 / 0
    assert not file.path.exists()


@pytest.mark.req("component.port_file.read")
@pytest.mark.parametrize(
    ("text", "port"),
    [
        (b"80", 80),
        (b" 80\r\n", 80),
        (b"65535\n", 65535),
        (b"65536\n", None),
        (b"0\n", None),
        (b"-1\n", None),
        (b"", None),
        (b"80 81\n", None),
        ("\N{ARABIC-INDIC DIGIT ONE}".encode(), None),
        (b"\xff\xfe", None),
        (b"9" * 100, None),
        (b"80" + b" " * 100, None),
        (b"8_0\n", None),
        (b"+80\n", None),
    ],
)
def test_invalid_content_is_read_as_none(
    home: Path, run: Path, text: bytes, port: int | None
) -> None:
    (run / "dice.port").write_bytes(text)
    assert PortFile.for_component(home, "dice").read_port() == port


@pytest.mark.req("component.port_file.read")
def test_only_regular_files_of_our_user_are_read(
    home: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(run / "pipe.port")  # opening it would block until a writer opens it
    (run / "folder.port").mkdir()
    (run / "link.port").symlink_to(run / "nowhere")
    (run / "dice.port").write_text("80\n")
    ports = {file.name: file.read_port() for file in list_port_files(home)}
    assert ports == {"dice": 80, "folder": None, "link": None, "pipe": None}
    monkeypatch.setattr(os, "geteuid", lambda: (run / "dice.port").stat().st_uid + 1)
    assert PortFile.for_component(home, "dice").read_port() is None


@pytest.mark.req("component.port_file.read")
def test_a_rewritten_file_is_distinguished_from_the_old_one(home: Path, run: Path) -> None:
    file = PortFile.for_component(home, "dice")
    file.path.write_text("80\n")
    before = file.read_content()
    assert before == file.read_content()
    os.utime(file.path, ns=(0, 1))
    after = file.read_content()
    assert before is not None
    assert after is not None
    assert (after.port, after == before) == (80, False)


@pytest.mark.req("component.port_file.stale")
def test_a_stale_file_is_distinguished_from_a_live_one(home: Path, run: Path) -> None:
    file = PortFile.for_component(home, "dice")
    assert not file.is_listening()
    with socket.create_server(("127.0.0.1", 0)) as server:
        file.path.write_text(f"{server.getsockname()[1]}\n")
        assert file.is_listening()
    assert not file.is_listening()


@pytest.mark.req("component.port_file.read")
def test_all_components_are_listed_without_the_daemon(home: Path, run: Path) -> None:
    assert list_port_files(home / "nowhere") == []
    for name in ("search.port", "dice.port", "crabtalk.port", ".dice.port.7.new", "dice.lock"):
        (run / name).write_text("1\n")
    assert [file.name for file in list_port_files(home)] == ["dice", "search"]


@pytest.mark.req("component.name")
@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a b", "crabtalk", "-a", "x" * 65, "a\n"])
def test_no_name_leads_out_of_the_directory(home: Path, name: str) -> None:
    with pytest.raises(ComponentError, match="take"):
        PortFile.for_component(home, name)
