"""Files, from a phone to an agent and back, sealed in transit."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pictures

from apps.web.tests.gateway.device_client import (
    check_order,
    format_envelopes,
    list_event_tags,
    list_texts,
)
from apps.web.tests.gateway.send_file_tool import WebSendFileHook
from apps.web.tests.gateway.web_gateway_world import open_world
from crabtalk_web.gateway.file_transfer import describe_image, safe_name
from crabtalk_web.gateway.thumbhash import compute_thumbhash
from crabtalk_web.stream import FileEvent, ImagePreview, ServiceEvent

Pixel = Callable[[int, int], tuple[int, int, int, int]]
# The results of the author's own implementation for these pixels.
REFERENCE: dict[str, tuple[int, int, Pixel, str]] = {
    "wide": (
        32,
        20,
        lambda x, y: (x * 8, y * 12, 128, 255),
        "9e170a349a707787707888878777708007f788",
    ),
    "tall": (
        10,
        30,
        lambda x, y: (x * y, y * 8, x * 20, 255),
        "16980d4a0e719078788787777d9007d77b",
    ),
    "see-through": (
        16,
        16,
        lambda x, y: (x * 16, y * 16, 0, (x + y) * 8),
        "570c86150c27a087b0888a7788a0b00af96870778078877878",
    ),
    "invisible": (
        4,
        4,
        lambda x, y: (0, 0, 0, 0),
        "00088205000000000000000000000000000000000000000000",
    ),
    "one pixel": (
        1,
        1,
        lambda x, y: (10, 20, 30, 255),
        "85e709270408f708888788708f7088f80888707ff8f7870f",
    ),
}


def make_png(width: int = 40, height: int = 20) -> bytes:
    data = io.BytesIO()
    Pictures.new("RGB", (width, height), (200, 30, 40)).save(data, "PNG")
    return data.getvalue()


@pytest.mark.req("gateway.files.in")
async def test_a_phones_file_is_at_the_path_that_the_agent_gets(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        ref = await world.phone.upload(session, b"the bytes")
        event = {"t": "file", "ref": ref, "name": "../../e vil\n.txt", "size": 9}
        envelope = world.phone.build_envelope(event)
        wrapped = {"role": "session", "content": {"type": "session", "data": envelope}}
        await world.phone.send_body(session, wrapped)
        await world.phone.send_text(session, "!say got it")
        check_order(await world.phone.wait_for_turns(session))
        (said,) = [m["text"] for m in world.daemon.read_messages() if m["role"] == "user"]
        path = Path(said.splitlines()[-1].removeprefix("- "))
        assert path.read_bytes() == b"the bytes"
        assert path.is_relative_to(tmp_path / "work" / ".crabtalk" / "inbox")
        assert path.name == "e vil_.txt"
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.req("gateway.files.in")
async def test_a_file_that_cannot_be_fetched_does_not_block_the_text(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        event = {
            "t": "file",
            "ref": f"sessions/{session.id}/attachments/no",
            "name": "x",
            "size": 1,
        }
        await world.phone.send_body(
            session, {"role": "session", "content": world.phone.build_envelope(event)}
        )
        await world.phone.send_text(session, "!say anyway")
        assert list_texts(await world.phone.wait_for_turns(session)) == ["anyway"]


@pytest.mark.req("gateway.files.out")
async def test_an_agents_file_reaches_the_phone_with_a_placeholder(tmp_path: Path) -> None:
    async with open_world(tmp_path, hooks={"sending": WebSendFileHook()}) as world:
        (tmp_path / "work" / "red.png").write_bytes(make_png())
        session = await world.phone.wait_for_session()
        await world.phone.send_text(
            session, '!tool send_file {"path": "red.png"}\n!then\n!say there'
        )
        envelopes = check_order(
            await world.phone.wait_for_envelopes(
                session, lambda envelopes: "file" in list_event_tags(envelopes)
            )
        )
        (file,) = [e.ev for e in envelopes if isinstance(e.ev, FileEvent)]
        assert (file.name, file.size, file.mime_type) == ("red.png", len(make_png()), "image/png")
        assert isinstance(file.image, ImagePreview)
        assert (file.image.width, file.image.height) == (40, 20)
        assert await world.phone.download(session, file.ref) == make_png()


@pytest.mark.req("gateway.files.out")
async def test_no_file_outside_the_directory_is_sent(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    async with open_world(tmp_path, hooks={"sending": WebSendFileHook()}) as world:
        (tmp_path / "work" / "link").symlink_to(tmp_path / "secret")
        session = await world.phone.wait_for_session()
        for path in ("../secret", "link", str(tmp_path / "secret"), "gone"):
            await world.phone.send_text(
                session, f'!tool send_file {{"path": "{path}"}}\n!then\n!say x'
            )
        envelopes = await world.phone.wait_for_envelopes(
            session,
            lambda envelopes: (
                sum(isinstance(e.ev, ServiceEvent) and "Error" in e.ev.text for e in envelopes) == 4
            ),
        )
        assert "file" not in list_event_tags(envelopes), format_envelopes(envelopes)


@pytest.mark.req("gateway.thumbhash")
@pytest.mark.parametrize("name", REFERENCE)
def test_a_placeholder_equals_the_reference_implementations(name: str) -> None:
    width, height, pixel, expected = REFERENCE[name]
    rgba = bytes(v % 256 for y in range(height) for x in range(width) for v in pixel(x, y))
    thumbhash = compute_thumbhash(width, height, rgba)
    assert len(thumbhash) == len(bytes.fromhex(expected))
    assert thumbhash[:6].hex() == expected[:12]
    # Terms near zero may be rounded the other way.
    pairs = zip(split_nibbles(thumbhash), split_nibbles(bytes.fromhex(expected)), strict=True)
    steps = [abs(mine - theirs) for mine, theirs in pairs]
    assert max(steps) <= 1
    assert sum(steps) <= 1


def split_nibbles(data: bytes) -> list[int]:
    return [nibble for byte in data for nibble in (byte & 15, byte >> 4)]


@pytest.mark.req("gateway.thumbhash")
def test_an_invalid_picture_has_no_placeholder() -> None:
    from msgspec import UNSET

    assert describe_image(b"no picture") is UNSET
    found = describe_image(make_png(3000, 10))
    assert isinstance(found, ImagePreview)
    assert found.width == 3000


@given(st.text(max_size=300))
def test_a_safe_name_never_leaves_its_folder(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert safe not in (".", "..")
    assert "/" not in safe
    assert "\0" not in safe
    assert not safe.startswith(".")
    assert len(safe.encode()) <= 600
