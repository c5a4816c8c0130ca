"""Those who have no business with a daemon: another user at its socket, a caller without its token.

They learn that they are turned away and nothing else, and those who may come do not notice.
"""

import asyncio
import os
import pwd
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crabtalk.protocol import MAX_FRAME, wire
from crabtalk.transport import RunFiles
from tests.hostile.attacked_daemon import AttackedDaemon, attack_target
from tests.hostile.hostile_frames import HostileFrameMaker, frame_bytes
from tests.scripted_server import RawPeer, make_ping

pytestmark = pytest.mark.one_loop

# What somebody else tries with a home: what came of each, a line each.
STRANGER_SCRIPT = """
import os, socket, sys
from pathlib import Path
home, number = Path(sys.argv[1]), int(sys.argv[3])
os.setgroups([])
os.setgid(number)
os.setuid(number)

def attempt(name, work):
    try:
        print(name, work())
    except OSError as error:
        print(name, type(error).__name__)

def call():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(home / "run" / "crabtalk.sock"))
        sock.sendall(bytes.fromhex(sys.argv[2]))
        data = b""
        while piece := sock.recv(65536):
            data += piece
        return data.hex()

attempt("list", lambda: sorted(os.listdir(home)))
attempt("token", lambda: (home / "run" / "token").read_text())
attempt("agent", lambda: (home / "agents" / "evil.toml").write_text("prompt = 'p'"))
attempt("call", call)
"""


def require_nobody_uid() -> int:
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT CAN BECOME SOMEBODY ELSE: another user at the socket is not tested")
    return pwd.getpwnam("nobody").pw_uid


def run_stranger(home: Path, said: bytes) -> dict[str, str]:
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            STRANGER_SCRIPT,
            str(home),
            said.hex(),
            str(require_nobody_uid()),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.req("trust.uds.mode")
@pytest.mark.req("trust.uds.same_user")
@pytest.mark.clock
async def test_another_user_gets_nowhere(tmp_path: Path) -> None:
    require_nobody_uid()
    said = frame_bytes(make_ping().SerializeToString())
    send = wire.ClientMessage(send=wire.SendMsg(agent="crab", content="!say canary", sender="evil"))
    async with (
        attack_target(tmp_path, tcp="127.0.0.1:0") as fired_at,
        fired_at.ping_beside() as watch,
    ):
        closed = await asyncio.to_thread(run_stranger, fired_at.home, said)
        assert set(closed.values()) == {"PermissionError"}, "the home is closed to them"
        # As if somebody had opened every directory and the socket to all.
        for path in (*tmp_path.parents, tmp_path, fired_at.home, fired_at.home / "run"):
            if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o001:
                path.chmod(0o711)
        RunFiles.for_home(fired_at.home).socket_path.chmod(0o666)
        for words in (said, frame_bytes(send.SerializeToString()), b"\xff" * 4, said * 1000):
            opened = await asyncio.to_thread(run_stranger, fired_at.home, words)
            answer = opened.pop("call")
            assert set(opened.values()) == {"PermissionError"}, opened
            assert answer in ("ConnectionResetError", "BrokenPipeError") or (
                "this daemon" in read_refusal(answer) or "user" in read_refusal(answer)
            )
        async with fired_at.client() as client:
            listed = await client.list_conversations()
            assert [one.sender for one in listed.conversations] == []
    watch.check()


def read_refusal(answer: str) -> str:
    message = wire.ServerMessage.FromString(bytes.fromhex(answer)[4:])
    assert message.error.code == 401, message
    return message.error.message


def make_bad_hellos(token: str) -> Iterator[bytes]:
    """First words of those who do not know it, or say it wrongly."""
    wrong = (
        *("", " ", token[:-1], token + "x", token.upper(), f" {token}", f"{token}\n", token[::-1]),
        *("\0", token + "\0", "é" * 40, "x" * 3000, "*", "%", "' OR 1=1 --", "../run/token"),
    )
    for given in wrong:
        yield frame_bytes(
            wire.ClientMessage(hello=wire.HelloMsg(token=given)).SerializeToString()
        ) + frame_bytes(make_ping().SerializeToString())
    yield frame_bytes(make_ping().SerializeToString())
    yield frame_bytes(wire.ClientMessage(hello=wire.HelloMsg(client=token)).SerializeToString())
    yield frame_bytes(b"")
    yield b"GET /?token=" + token.encode() + b" HTTP/1.1\r\n\r\n"
    for size in (4097, 1 << 20, MAX_FRAME, MAX_FRAME + 1, 2**32 - 1):
        yield size.to_bytes(4, "big") + bytes(min(size, 1 << 20))
    large = wire.HelloMsg(token=token, client="x" * 5000)  # a greeting is no burden
    yield frame_bytes(wire.ClientMessage(hello=large).SerializeToString())
    maker = HostileFrameMaker(seed=7)
    for _ in range(300):
        yield frame_bytes(maker.make_frame())


@pytest.mark.req("trust.tcp.token")
@pytest.mark.clock
async def test_without_the_token_nobody_is_heard(tmp_path: Path) -> None:
    async with (
        attack_target(tmp_path, tcp="127.0.0.1:0") as fired_at,
        fired_at.ping_beside() as watch,
    ):
        files = RunFiles.for_home(fired_at.home)
        token, port = (
            files.token_path.read_text().strip(),
            int(files.port_path.read_text().split()[0]),
        )
        assert files.token_path.stat().st_mode & 0o777 == 0o600
        said = set()
        for words in make_bad_hellos(token):
            said.add(await expect_refusal(fired_at, port, words))
        assert all(token not in each for each in said)
        assert len(said) < 10, "which of its letters were wrong is not told"
        peer = await RawPeer.connect_tcp(port)
        peer.send(wire.ClientMessage(hello=wire.HelloMsg(token=token)), make_ping())
        assert (await peer.expect()).HasField("welcome")
        assert (await peer.expect()).HasField("pong")
        await peer.close()
    watch.check()


async def expect_refusal(fired_at: AttackedDaemon, port: int, words: bytes) -> str:
    """The one sentence that is the answer."""
    peer = await RawPeer.connect_tcp(port)
    try:
        peer.writer.write(words)
        async with asyncio.timeout(15):
            sentence = await peer.expect_error(401)
            await peer.expect_close()
    except ConnectionResetError:
        sentence = "reset"
    finally:
        await peer.close()
    return sentence


@pytest.mark.req("bounds.hello_deadline")
@pytest.mark.clock
async def test_a_crowd_of_strangers_keeps_nobody_out(tmp_path: Path) -> None:
    """More than may wait, silent or talking nonsense without an end."""
    rng = random.Random(11)
    async with (
        attack_target(tmp_path, tcp="127.0.0.1:0") as fired_at,
        fired_at.ping_beside() as watch,
    ):
        files = RunFiles.for_home(fired_at.home)
        port, resident = int(files.port_path.read_text().split()[0]), fired_at.resident_bytes
        crowd = [await RawPeer.connect_tcp(port) for _ in range(300)]
        for number, peer in enumerate(crowd):
            if number % 2:
                peer.writer.write(rng.randbytes(rng.randrange(3, 3000)))
        await fired_at.check_answers()
        for peer in crowd:
            peer.transport.abort()
        token = files.token_path.read_text().strip()
        async with asyncio.timeout(15):
            while not await is_let_in(port, token):
                await asyncio.sleep(0.01)
        assert fired_at.resident_bytes - resident < 16 << 20
    watch.check()


async def is_let_in(port: int, token: str) -> bool:
    peer = await RawPeer.connect_tcp(port)
    try:
        peer.send(wire.ClientMessage(hello=wire.HelloMsg(token=token)))
        answer = await peer.read()
        return answer is not None and answer.HasField("welcome")
    except OSError:  # there is no room for one who has not shown it yet
        return False
    finally:
        peer.transport.abort()
