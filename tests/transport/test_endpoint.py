"""Endpoint and RunFiles: how clients find a daemon."""

import os
import ssl
import stat
from pathlib import Path

import pytest

from crabtalk.transport import Endpoint, RunFiles, TcpAddress, default_home


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    (tmp_path / "run").mkdir()
    return RunFiles.for_home(tmp_path)


@pytest.mark.req("home.location")
def test_the_home_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRABTALK_HOME", "~/elsewhere")
    assert default_home() == Path.home() / "elsewhere"
    monkeypatch.setenv("CRABTALK_HOME", "relative")
    assert default_home() == Path.cwd() / "relative"


@pytest.mark.req("home.location")
@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_the_home_is_in_the_users_home(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("CRABTALK_HOME")
    else:
        monkeypatch.setenv("CRABTALK_HOME", value)
    assert default_home() == Path.home() / ".crabtalk"


@pytest.mark.req("home.run_files")
def test_the_files_have_the_names_that_clients_expect(run: RunFiles, tmp_path: Path) -> None:
    assert run.socket_path == tmp_path / "run" / "crabtalk.sock"
    assert run.port_path == tmp_path / "run" / "crabtalk.port"
    assert run.token_path == tmp_path / "run" / "token"


@pytest.mark.req("home.run_files")
def test_the_port_is_published_as_bare_digits(run: RunFiles) -> None:
    run.publish_port(6688)
    assert run.port_path.read_bytes() == b"6688"


@pytest.mark.req("trust.tcp.token")
def test_a_token_is_made_once_and_is_private(run: RunFiles) -> None:
    token = run.ensure_token()
    assert len(token) == 64
    assert stat.S_IMODE(run.token_path.stat().st_mode) == 0o600
    assert run.ensure_token() == token


def test_a_token_that_others_could_read_is_made_private(run: RunFiles) -> None:
    run.token_path.write_text("chosen by hand\n")
    run.token_path.chmod(0o644)
    assert run.ensure_token() == "chosen by hand"
    assert stat.S_IMODE(run.token_path.stat().st_mode) == 0o600


def test_an_empty_token_is_replaced(run: RunFiles) -> None:
    run.token_path.write_text("\n")
    assert len(run.ensure_token()) == 64


def test_the_socket_comes_before_tcp(run: RunFiles) -> None:
    assert run.find_endpoints() == []
    run.publish_port(4321)
    token = run.ensure_token()
    run.lock_path.write_text(str(os.getpid()))
    tcp = Endpoint(tcp=TcpAddress("127.0.0.1", 4321), token=token)
    assert run.find_endpoints() == [tcp]
    run.socket_path.touch()
    assert run.find_endpoints() == [Endpoint(path=run.socket_path), tcp]


@pytest.mark.req("transport.stale")
@pytest.mark.parametrize("holder", [None, "", "nonsense", "0", "-1", "9" * 20])
def test_the_token_is_not_offered_with_the_port_of_a_dead_daemon(
    run: RunFiles, holder: str | None
) -> None:
    run.publish_port(4321)
    run.ensure_token()
    if holder is not None:
        run.lock_path.write_text(holder)
    assert run.find_endpoints() == []


@pytest.mark.parametrize("content", ["", "x", "12 34"])
def test_a_port_file_with_nonsense_is_ignored(run: RunFiles, content: str) -> None:
    run.ensure_token()
    run.lock_path.write_text(str(os.getpid()))
    run.port_path.write_text(content)
    assert run.find_endpoints() == []


def test_addresses_are_read_with_and_without_slashes(tmp_path: Path) -> None:
    assert Endpoint.parse("unix:/a/b") == Endpoint.parse("unix:///a/b") == Endpoint(Path("/a/b"))
    tcp = Endpoint(tcp=TcpAddress("h", 1), token="t")
    assert Endpoint.parse("tcp:h:1", token="t") == Endpoint.parse("tcp://h:1", token="t") == tcp
    tls = Endpoint.parse("tls://h:1")
    assert isinstance(tls.tls, ssl.SSLContext)
    assert str(tls) == "tls:h:1"
    assert str(tcp) == "tcp:h:1"
    assert str(Endpoint.parse("unix:~/s")) == f"unix:{os.path.expanduser('~/s')}"  # noqa: PTH111


@pytest.mark.parametrize("text", ["", "unix:", "http://h:1", "h:1", "/a/b", "tcp:h"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unix:PATH|HOST:PORT"):
        Endpoint.parse(text)
