"""crabtalkd as a real process: started, asked, interrupted and killed."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

import crabtalk
from crabtalk.client import CannotConnectError, DaemonNotRunningError, ServerError, connect
from crabtalk.protocol import wire
from crabtalk.transport import DEFAULT_PORT, RunFiles
from tests.daemon.crabtalkd_program import CRABTALKD, CRABTALKD_PROGRAM
from tests.forked_programs import PATIENCE, PIPE, ForkedProcess
from tests.scripted_server import RawPeer, make_ping

# The tested processes have event loops of their own.
pytestmark = pytest.mark.one_loop


class SpawnedDaemon:
    def __init__(
        self, process: ForkedProcess | asyncio.subprocess.Process, home: Path, ready: str
    ) -> None:
        self.process = process
        self.run_files = RunFiles.for_home(home)
        self.ready_line = ready

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    @property
    def port(self) -> int:
        return int(self.run_files.port_path.read_text())


@asynccontextmanager
async def spawn_daemon(
    home: Path, *options: str, is_installed: bool = False
) -> AsyncIterator[SpawnedDaemon]:
    words = ("run", "--home", str(home), *options)
    process: ForkedProcess | asyncio.subprocess.Process
    if is_installed:
        process = await asyncio.create_subprocess_exec(CRABTALKD, *words, stderr=PIPE)
    else:
        process = CRABTALKD_PROGRAM.start(*words, stderr=PIPE)
    assert process.stderr is not None
    try:
        ready = (await process.stderr.readline()).decode()
        assert "crabtalkd is ready" in ready, ready + (await process.stderr.read()).decode()
        yield SpawnedDaemon(process, home, ready)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def expect_start_failure(home: Path, *options: str) -> str:
    """The stderr of a daemon that fails to start."""
    status, _, stderr = await CRABTALKD_PROGRAM.run_and_capture("run", "--home", home, *options)
    assert status == 1
    return stderr


ANY_PORT = ("--tcp", "127.0.0.1:0")


@pytest.mark.req("daemon.start.binds")
@pytest.mark.req("trust.tcp.loopback")
async def test_the_daemon_prints_its_addresses_and_answers_there(home: Path) -> None:
    async with spawn_daemon(home, *ANY_PORT, is_installed=True) as running:
        assert f"{running.run_files.socket_path}, 127.0.0.1:{running.port}\n" in running.ready_line
        async with connect(home=home) as client:
            await client.ping()
            welcome = await client.hello()
            assert welcome.protocol_version == 1
            assert welcome.server_version == crabtalk.__version__
            assert (await client.get_stats()).uptime_secs < 60
        token = running.run_files.token_path.read_text()
        async with connect(f"tcp:127.0.0.1:{running.port}", token=token) as client:
            await client.ping()


@pytest.mark.req("trust.uds.mode")
async def test_the_files_of_the_daemon_are_private(home: Path) -> None:
    async with spawn_daemon(home, *ANY_PORT) as running:
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in [home, *running.run_files.directory.iterdir(), running.run_files.directory]
        }
    assert modes == {
        "home": 0o700,
        "run": 0o700,
        "crabtalk.sock": 0o600,
        "crabtalk.port": 0o600,
        "crabtalk.lock": 0o600,
        "token": 0o600,
    }


@pytest.mark.req("daemon.writes_inside_home")
async def test_the_daemon_writes_nothing_outside_its_home(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {name: tmp_path / name for name in ("user", "tmp", "cwd")}
    for path in elsewhere.values():
        path.mkdir()
    monkeypatch.setenv("HOME", str(elsewhere["user"]))
    monkeypatch.setenv("TMPDIR", str(elsewhere["tmp"]))
    monkeypatch.chdir(elsewhere["cwd"])
    async with spawn_daemon(home, *ANY_PORT, is_installed=True) as running:
        async with connect(home=home) as client:
            await client.list_agents()  # answered when they are loaded
        await running.stop()
    assert sorted(tmp_path.rglob("*")) == sorted(
        [
            home,
            home / "agents",
            home / "agents" / "crab.toml",
            home / "logs",
            home / "logs" / "crabtalkd.log",
            home / "run",
            home / "run" / "crabtalk.lock",
            home / "run" / "token",
            *list(elsewhere.values()),
        ]
    )


@pytest.mark.req("daemon.requests.unanswered")
async def test_requests_without_a_handler_are_answered_with_501(home: Path) -> None:
    async with spawn_daemon(home, "--tcp", "off"), connect(home=home) as client:
        with pytest.raises(ServerError) as caught:
            await client.extension(b"anything")
        assert caught.value.code == 501


@pytest.mark.req("wire.get_config.gone")
async def test_get_config_is_gone(home: Path) -> None:
    async with spawn_daemon(home, "--tcp", "off"), connect(home=home) as client:
        with pytest.raises(ServerError) as caught:
            await client.get_config()
        assert caught.value.code == 410


# ── Stopping ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("daemon.shutdown.order")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_daemon_cleanly(home: Path, number: signal.Signals) -> None:
    async with spawn_daemon(home, *ANY_PORT) as running:
        peer = await RawPeer.connect_unix(running.run_files.socket_path)
        peer.send(make_ping())
        await peer.expect()
        assert await running.stop(number) == 0
        await peer.expect_close()
        await peer.close()
        assert sorted(p.name for p in running.run_files.directory.iterdir()) == [
            "crabtalk.lock",
            "token",
        ]
        assert running.process.stderr is not None
        assert await running.process.stderr.read() == b""


@pytest.mark.req("daemon.shutdown.order")
async def test_ctrl_c_during_the_start_ends_the_daemon_silently(home: Path) -> None:
    """The start is blocked because the configuration file is a pipe without data."""
    home.mkdir(0o700)
    os.mkfifo(home / "config.toml")
    process = CRABTALKD_PROGRAM.start("run", "--home", home, *ANY_PORT, stderr=PIPE)
    async with asyncio.timeout(PATIENCE):
        writing = None
        while writing is None:
            with suppress(OSError):  # no process reads it yet
                writing = os.open(home / "config.toml", os.O_WRONLY | os.O_NONBLOCK)
            await asyncio.sleep(0)
        ending = asyncio.ensure_future(process.communicate())
        # A signal just before the process begins to read does not interrupt the read; it is noticed
        # with the next signal.
        while not ending.done():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await asyncio.wait((ending,), timeout=2)
        _, err = ending.result()
        os.close(writing)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.req("daemon.restart.recovers")
@pytest.mark.req("transport.stale")
async def test_a_killed_daemon_does_not_prevent_the_next_start(home: Path) -> None:
    async with spawn_daemon(home, *ANY_PORT) as running:
        token = running.run_files.token_path.read_text()
        await running.stop(signal.SIGKILL)
        assert running.run_files.socket_path.exists()
        assert running.run_files.port_path.exists()
    with pytest.raises(DaemonNotRunningError):
        async with connect(home=home):
            pass
    async with spawn_daemon(home, "--tcp", "off") as running:
        assert not running.run_files.port_path.exists()
        assert running.run_files.token_path.read_text() == token
        async with connect(home=home) as client:
            await client.ping()


async def test_a_second_signal_ends_the_process_despite_a_request_that_resists(
    home: Path,
) -> None:
    """A request that resists cancellation does not keep the process alive."""
    script = f"""
import asyncio, sys
from pathlib import Path
from crabtalk.daemon.config.settings import Config
from crabtalk.daemon.process.home import Home
from crabtalk.daemon.process.main_loop import serve
from crabtalk.protocol import Server

class Stubborn(Server):
    async def ping(self, request):
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                print("no", file=sys.stderr, flush=True)

with Home(Path({str(home)!r})) as home, asyncio.Runner() as runner:
    ready = lambda text: print(text, file=sys.stderr, flush=True)
    runner.run(serve(home, Config(tcp=None), Stubborn(), ready))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=PIPE)
    assert process.stderr is not None
    assert b"ready" in await process.stderr.readline()
    peer = await RawPeer.connect_unix(RunFiles.for_home(home).socket_path)
    peer.send(make_ping())
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await process.communicate()
    assert process.returncode is not None
    await peer.close()


async def test_the_files_of_a_later_daemon_are_not_removed(home: Path) -> None:
    async with spawn_daemon(home, *ANY_PORT) as first:
        shutil.rmtree(first.run_files.directory)
        async with spawn_daemon(home, *ANY_PORT):
            assert await first.stop() == 0
            async with connect(home=home) as client:
                await client.ping()


# ── Refusing to start ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("home.one_daemon")
async def test_a_second_daemon_says_why_and_leaves_the_first_alone(home: Path) -> None:
    async with spawn_daemon(home, *ANY_PORT) as running:
        output = await expect_start_failure(home, *ANY_PORT)
        assert f"another daemon (pid {running.process.pid}) already runs in {home}" in output
        assert output.count("\n") == 1
        async with connect(home=home) as client:
            await client.ping()
        token = running.run_files.token_path.read_text()
        async with connect(f"tcp:127.0.0.1:{running.port}", token=token) as client:
            await client.ping()


async def test_many_daemons_started_at_once_leave_one(home: Path) -> None:
    processes = [
        CRABTALKD_PROGRAM.start("run", "--home", home, *ANY_PORT, stderr=PIPE) for _ in range(6)
    ]
    lines = await asyncio.gather(*(p.stderr.readline() for p in processes if p.stderr))
    ready = [p for p, line in zip(processes, lines, strict=True) if b"is ready" in line]
    assert len(ready) == 1
    async with connect(home=home) as client:
        await client.ping()
    ready[0].terminate()
    codes = sorted([await p.wait() for p in processes])
    for process in processes:
        await process.communicate()
    assert codes == [0, 1, 1, 1, 1, 1]


@pytest.mark.req("transport.stale")
async def test_another_program_on_the_socket_is_left_alone(home: Path) -> None:
    run = RunFiles.for_home(home)
    run.directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(run.socket_path))
        other.listen()
        assert "another program answers" in await expect_start_failure(home, "--tcp", "off")
        assert run.socket_path.is_socket()


@pytest.mark.req("transport.tcp.port")
async def test_the_default_port_is_skipped_if_another_program_uses_it(home: Path) -> None:
    with socket.socket() as other:
        with suppress(OSError):  # then another program uses it already, which works as well
            other.bind(("127.0.0.1", DEFAULT_PORT))
            other.listen()
        async with spawn_daemon(home) as running:
            assert running.port >= DEFAULT_PORT
            assert running.port != DEFAULT_PORT or other.getsockname()[1] != DEFAULT_PORT
            async with connect(home=home) as client:
                await client.ping()


async def test_a_configured_port_in_use_is_an_error(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        output = await expect_start_failure(home, "--tcp", f"127.0.0.1:{taken}")
        assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in output
        assert "choose another address with --tcp" in output
        assert not RunFiles.for_home(home).socket_path.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--tcp", "nowhere"), "'nowhere' is not an address: write HOST:PORT"),
        (("--tcp", "0.0.0.0:0"), "needs TLS"),
        (("--tcp", "192.0.2.1:0"), "needs TLS"),
    ],
)
async def test_a_bad_option_is_one_sentence_and_leaves_no_files(
    home: Path, options: tuple[str, ...], sentence: str
) -> None:
    output = await expect_start_failure(home, *options)
    assert sentence in output
    assert output.count("\n") == 1
    assert not RunFiles.for_home(home).socket_path.exists()


async def test_a_bad_certificate_is_reported_and_leaves_no_files(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[daemon]\ntls_cert = "c"\ntls_key = "k"\n')
    assert f"tls_cert {home}/c and tls_key {home}/k cannot be used" in await expect_start_failure(
        home, *ANY_PORT
    )
    assert not RunFiles.for_home(home).socket_path.exists()
    assert not RunFiles.for_home(home).port_path.exists()


async def test_an_unusable_token_is_reported_with_a_remedy(home: Path) -> None:
    RunFiles.for_home(home).token_path.mkdir(parents=True)
    output = await expect_start_failure(home, *ANY_PORT)
    assert f"cannot use the token in {home}/run/token: Is a directory; delete it" in output


@pytest.mark.parametrize("token", [b"\xff\xfe", b"x" * 2000])
async def test_a_token_that_no_client_could_send_is_refused(home: Path, token: bytes) -> None:
    run = RunFiles.for_home(home)
    run.directory.mkdir(parents=True)
    run.token_path.write_bytes(token)
    assert f"cannot use the token in {run.token_path}" in await expect_start_failure(
        home, *ANY_PORT
    )


async def test_unknown_keys_in_the_configuration_are_logged(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[daemon]\ntpc = 1\n")
    process = CRABTALKD_PROGRAM.start("run", "--home", home, *ANY_PORT, stderr=PIPE)
    assert process.stderr is not None
    assert b"has tpc in [daemon], which means nothing" in await process.stderr.readline()
    assert b"is ready" in await process.stderr.readline()
    process.terminate()
    await process.communicate()


# ── TLS ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.tcp.tls")
async def test_with_tls_the_daemon_serves_other_machines(home: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    home.mkdir()
    certificate.cert_chain_pems[0].write_to_path(str(home / "c.pem"))
    certificate.private_key_pem.write_to_path(str(home / "k.pem"))
    (home / "config.toml").write_text('[daemon]\ntls_cert = "c.pem"\ntls_key = "k.pem"\n')
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with spawn_daemon(home, "--tcp", "0.0.0.0:0") as running:
        assert "with TLS" in running.ready_line
        assert not running.run_files.port_path.exists()  # local clients have the socket
        port = running.ready_line.rsplit(":", 1)[1].split()[0]
        token = running.run_files.token_path.read_text()
        async with connect(f"tls:127.0.0.1:{port}", token=token, tls=context) as client:
            await client.ping()
        with pytest.raises(ServerError, match="401"):
            async with connect(f"tls:127.0.0.1:{port}", token="x", tls=context):
                pass
        with pytest.raises(CannotConnectError, match=r"is not trusted .*create_default_context"):
            async with connect(f"tls:127.0.0.1:{port}", token=token):
                pass


# ── Descriptors ────────────────────────────────────────────────────────────────────────────────


async def test_connections_are_limited_by_the_available_descriptors(home: Path) -> None:
    limited = f"ulimit -n 328; exec {CRABTALKD} run --home {home} --tcp off"
    process = await asyncio.create_subprocess_shell(limited, stderr=PIPE)
    assert process.stderr is not None
    assert b"ready" in await process.stderr.readline()
    peers = [await RawPeer.connect_unix(RunFiles.for_home(home).socket_path) for _ in range(150)]
    answers: list[wire.ServerMessage | None] = []
    for peer in peers:
        peer.send(make_ping())
        answers.append(await peer.read())
    kinds = [a.WhichOneof("msg") if a else None for a in answers]
    # 256 are for its own files and waiting connections; a connection takes one more, a turn two.
    assert kinds.count("pong") == (328 - 256) // 3
    assert kinds.count("error") > 0
    for peer in peers:
        await peer.close()
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


@pytest.mark.req("bounds.descriptors")
async def test_a_turn_limit_lowered_by_descriptors_is_reported_even_if_all_connections_fit(
    home: Path,
) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[limits]\nconnections = 1\n")
    limited = f"ulimit -n 328; exec {CRABTALKD} run --home {home} --tcp off"
    process = await asyncio.create_subprocess_shell(limited, stderr=PIPE)
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        assert b"ready" in await process.stderr.readline()
        process.terminate()
        _, output = await process.communicate()
    assert b"room for 1 connections and 35 turns" in output
