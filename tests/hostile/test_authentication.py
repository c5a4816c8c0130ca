"""Unauthorised access: another user at the socket, and clients without the token.

They get a refusal and no other information, and authorised clients are not affected.
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

# Attempts of another user on a home. Prints the result of each attempt as one line.
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
        while chunk := sock.recv(65536):
            data += chunk
        return data.hex()

attempt("list", lambda: sorted(os.listdir(home)))
attempt("token", lambda: (home / "run" / "token").read_text())
attempt("agent", lambda: (home / "agents" / "evil.toml").write_text("prompt = 'p'"))
attempt("call", call)
"""


def require_other_user() -> int:
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT CAN BECOME ANOTHER USER: another user at the socket is not tested")
    return pwd.getpwnam("nobody").pw_uid  # the unprivileged user of the system


def run_stranger(home: Path, request: bytes) -> dict[str, str]:
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            STRANGER_SCRIPT,
            str(home),
            request.hex(),
            str(require_other_user()),
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
async def test_another_user_is_refused(tmp_path: Path) -> None:
    require_other_user()
    ping = frame_bytes(make_ping().SerializeToString())
    send = wire.ClientMessage(send=wire.SendMsg(agent="crab", content="!say canary", sender="evil"))
    async with (
        attack_target(tmp_path, tcp="127.0.0.1:0") as attacked,
        attacked.ping_beside() as monitor,
    ):
        closed = await asyncio.to_thread(run_stranger, attacked.home, ping)
        assert set(closed.values()) == {"PermissionError"}, "the home is closed to them"
        # As if every directory and the socket were open to all users.
        for path in (*tmp_path.parents, tmp_path, attacked.home, attacked.home / "run"):
            if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o001:
                path.chmod(0o711)
        RunFiles.for_home(attacked.home).socket_path.chmod(0o666)
        for request in (ping, frame_bytes(send.SerializeToString()), b"\xff" * 4, ping * 1000):
            opened = await asyncio.to_thread(run_stranger, attacked.home, request)
            answer = opened.pop("call")
            assert set(opened.values()) == {"PermissionError"}, opened
            assert answer in ("ConnectionResetError", "BrokenPipeError") or (
                "this daemon" in read_refusal(answer) or "user" in read_refusal(answer)
            )
        async with attacked.client() as client:
            listed = await client.list_conversations()
            assert list(listed.conversations) == []
    monitor.check()


def read_refusal(answer: str) -> str:
    message = wire.ServerMessage.FromString(bytes.fromhex(answer)[4:])
    assert message.error.code == 401, message
    return message.error.message


def make_bad_hellos(token: str) -> Iterator[bytes]:
    """Greetings without the token, or with a wrong one."""
    wrong_tokens = (
        *("", " ", token[:-1], token + "x", token.upper(), f" {token}", f"{token}\n", token[::-1]),
        *("\0", token + "\0", "é" * 40, "x" * 3000, "*", "%", "' OR 1=1 --", "../run/token"),
    )
    for wrong_token in wrong_tokens:
        yield frame_bytes(
            wire.ClientMessage(hello=wire.HelloMsg(token=wrong_token)).SerializeToString()
        ) + frame_bytes(make_ping().SerializeToString())
    yield frame_bytes(make_ping().SerializeToString())
    yield frame_bytes(wire.ClientMessage(hello=wire.HelloMsg(client=token)).SerializeToString())
    yield frame_bytes(b"")
    yield b"GET /?token=" + token.encode() + b" HTTP/1.1\r\n\r\n"
    for size in (4097, 1 << 20, MAX_FRAME, MAX_FRAME + 1, 2**32 - 1):
        yield size.to_bytes(4, "big") + bytes(min(size, 1 << 20))
    large = wire.HelloMsg(token=token, client="x" * 5000)  # a greeting has a small size limit
    yield frame_bytes(wire.ClientMessage(hello=large).SerializeToString())
    maker = HostileFrameMaker(seed=7)
    for _ in range(300):
        yield frame_bytes(maker.make_frame())


@pytest.mark.req("trust.tcp.token")
@pytest.mark.clock
async def test_clients_without_the_token_are_refused(tmp_path: Path) -> None:
    async with (
        attack_target(tmp_path, tcp="127.0.0.1:0") as attacked,
        attacked.ping_beside() as monitor,
    ):
        files = RunFiles.for_home(attacked.home)
        token, port = (
            files.token_path.read_text().strip(),
            int(files.port_path.read_text().split()[0]),
        )
        assert files.token_path.stat().st_mode & 0o777 == 0o600
        refusals = set()
        for hello in make_bad_hellos(token):
            refusals.add(await expect_refusal(attacked, port, hello))
        assert all(token not in refusal for refusal in refusals)
        assert len(refusals) < 10, "refusals do not depend on the wrong characters"
        peer = await RawPeer.connect_tcp(port)
        peer.send(wire.ClientMessage(hello=wire.HelloMsg(token=token)), make_ping())
        assert (await peer.expect()).HasField("welcome")
        assert (await peer.expect()).HasField("pong")
        await peer.close()
    monitor.check()


async def expect_refusal(attacked: AttackedDaemon, port: int, hello: bytes) -> str:
    """The sentence of the refusal."""
    peer = await RawPeer.connect_tcp(port)
    try:
        peer.writer.write(hello)
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
async def test_a_crowd_of_unauthorised_connections_does_not_block_clients(tmp_path: Path) -> None:
    """More connections than may wait, silent or sending incomplete nonsense."""
    rng = random.Random(11)
    async with (
        attack_target(tmp_path, tcp="127.0.0.1:0") as attacked,
        attacked.ping_beside() as monitor,
    ):
        files = RunFiles.for_home(attacked.home)
        port, resident = int(files.port_path.read_text().split()[0]), attacked.resident_bytes
        crowd = [await RawPeer.connect_tcp(port) for _ in range(300)]
        for number, peer in enumerate(crowd):
            if number % 2:
                peer.writer.write(rng.randbytes(rng.randrange(3, 3000)))
        await attacked.check_answers()
        for peer in crowd:
            peer.transport.abort()
        token = files.token_path.read_text().strip()
        async with asyncio.timeout(15):
            while not await is_let_in(port, token):
                await asyncio.sleep(0.01)
        assert attacked.resident_bytes - resident < 16 << 20
    monitor.check()


async def is_let_in(port: int, token: str) -> bool:
    peer = await RawPeer.connect_tcp(port)
    try:
        peer.send(wire.ClientMessage(hello=wire.HelloMsg(token=token)))
        answer = await peer.read()
        return answer is not None and answer.HasField("welcome")
    except OSError:  # too many connections wait for their greeting
        return False
    finally:
        peer.transport.abort()
