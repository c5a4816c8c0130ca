"""crabtalkd as users run it: a real process, started, talked to, interrupted, killed."""

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

# What it tests is in processes with loops of their own.
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
    """What a daemon says that does not start."""
    status, _, stderr = await CRABTALKD_PROGRAM.run_and_capture("run", "--home", home, *options)
    assert status == 1
    return stderr


ANY_PORT = ("--tcp", "127.0.0.1:0")


@pytest.mark.req("daemon.start.binds")
@pytest.mark.req("trust.tcp.loopback")
async def test_it_says_where_it_is_and_answers_there(home: Path) -> None:
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
async def test_what_it_publishes_is_private(home: Path) -> None:
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
async def test_it_writes_nothing_outside_its_home(
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
            await client.list_agents()  # answered when they are there
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
async def test_requests_of_parts_not_there_yet_answer_501(home: Path) -> None:
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
async def test_a_signal_ends_it_cleanly(home: Path, number: signal.Signals) -> None:
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
async def test_ctrl_c_before_it_is_ready_ends_it_without_a_word(home: Path) -> None:
    """A configuration that does not come, for it is a pipe, keeps it there."""
    home.mkdir(0o700)
    os.mkfifo(home / "config.toml")
    process = CRABTALKD_PROGRAM.start("run", "--home", home, *ANY_PORT, stderr=PIPE)
    async with asyncio.timeout(PATIENCE):
        writing = None
        while writing is None:
            with suppress(OSError):  # nobody reads it yet
                writing = os.open(home / "config.toml", os.O_WRONLY | os.O_NONBLOCK)
            await asyncio.sleep(0)
        ending = asyncio.ensure_future(process.communicate())
        # A signal that arrives just before the process begins to read is only noticed with the next
        # one: the read is not interrupted by it.
        while not ending.done():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await asyncio.wait((ending,), timeout=2)
        _, err = ending.result()
        os.close(writing)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.req("daemon.restart.recovers")
@pytest.mark.req("transport.stale")
async def test_a_killed_daemon_leaves_nothing_in_the_way(home: Path) -> None:
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


async def test_a_second_signal_does_not_wait_and_a_stubborn_request_is_left_behind(
    home: Path,
) -> None:
    """A server whose request resists cancellation: the process ends all the same."""
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


async def test_files_of_a_daemon_that_came_after_are_left_alone(home: Path) -> None:
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
        said = await expect_start_failure(home, *ANY_PORT)
        assert f"another daemon (pid {running.process.pid}) already runs in {home}" in said
        assert said.count("\n") == 1
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
async def test_the_usual_port_is_stepped_over_when_another_program_has_it(home: Path) -> None:
    with socket.socket() as other:
        with suppress(OSError):  # then somebody else has it, which will do as well
            other.bind(("127.0.0.1", DEFAULT_PORT))
            other.listen()
        async with spawn_daemon(home) as running:
            assert running.port >= DEFAULT_PORT
            assert running.port != DEFAULT_PORT or other.getsockname()[1] != DEFAULT_PORT
            async with connect(home=home) as client:
                await client.ping()


async def test_a_port_asked_for_in_particular_is_that_or_an_error(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        said = await expect_start_failure(home, "--tcp", f"127.0.0.1:{taken}")
        assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in said
        assert "choose another address with --tcp" in said
        assert not RunFiles.for_home(home).socket_path.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--tcp", "nowhere"), "'nowhere' is not an address: write HOST:PORT"),
        (("--tcp", "0.0.0.0:0"), "needs TLS"),
        (("--tcp", "192.0.2.1:0"), "needs TLS"),
    ],
)
async def test_a_bad_option_is_one_sentence_and_nothing_stays(
    home: Path, options: tuple[str, ...], sentence: str
) -> None:
    said = await expect_start_failure(home, *options)
    assert sentence in said
    assert said.count("\n") == 1
    assert not RunFiles.for_home(home).socket_path.exists()


async def test_a_bad_certificate_is_named_and_nothing_stays(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[daemon]\ntls_cert = "c"\ntls_key = "k"\n')
    assert f"tls_cert {home}/c and tls_key {home}/k cannot be used" in await expect_start_failure(
        home, *ANY_PORT
    )
    assert not RunFiles.for_home(home).socket_path.exists()
    assert not RunFiles.for_home(home).port_path.exists()


async def test_a_token_it_cannot_use_is_named_with_the_remedy(home: Path) -> None:
    RunFiles.for_home(home).token_path.mkdir(parents=True)
    said = await expect_start_failure(home, *ANY_PORT)
    assert f"cannot use the token in {home}/run/token: Is a directory; delete it" in said


@pytest.mark.parametrize("token", [b"\xff\xfe", b"x" * 2000])
async def test_a_token_no_client_could_show_is_refused(home: Path, token: bytes) -> None:
    run = RunFiles.for_home(home)
    run.directory.mkdir(parents=True)
    run.token_path.write_bytes(token)
    assert f"cannot use the token in {run.token_path}" in await expect_start_failure(
        home, *ANY_PORT
    )


async def test_words_in_the_configuration_that_mean_nothing_are_said_to(home: Path) -> None:
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
async def test_with_tls_it_serves_other_machines(home: Path) -> None:
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


async def test_it_promises_no_more_connections_than_it_has_descriptors(home: Path) -> None:
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
    # 256 are for its own files and for callers at the doors; then each takes one, its turn two.
    assert kinds.count("pong") == (328 - 256) // 3
    assert kinds.count("error") > 0
    for peer in peers:
        await peer.close()
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


@pytest.mark.req("bounds.descriptors")
async def test_fewer_turns_than_the_limits_say_are_told_though_all_connections_have_room(
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
        _, said = await process.communicate()
    assert b"room for 1 connections and 35 turns" in said
