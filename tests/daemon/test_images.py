"""Images in tool results are sent to the model: through a real socket, with real files."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.in_process_daemon import InProcessDaemon, run_daemon, script_tool_calls
from tests.model_server import model_server


def make_png_chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + check


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + make_png_chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 0, 0, 0, 0))
    + make_png_chunk(b"IDAT", zlib.compress(b"\0\x00\xff"))
    + make_png_chunk(b"IEND", b"")
)


def extract_images(request: dict[str, Any]) -> list[bytes]:
    """The images of a request."""
    parts = [m["content"] for m in request["messages"] if isinstance(m["content"], list)]
    urls = [p["image_url"]["url"] for part in parts for p in part if p["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


def list_tool_results(daemon: InProcessDaemon) -> list[str]:
    return [m["content"] for m in daemon.model.requests[-1]["messages"] if m["role"] == "tool"]


@pytest.mark.req("files.read.images.shown")
async def test_the_model_gets_an_image_that_was_read_also_after_a_restart(tmp_path: Path) -> None:
    picture = tmp_path / "beach.png"
    picture.write_bytes(PNG)
    script = script_tool_calls([("read", {"path": str(picture)})])
    async with model_server() as model:
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            await client.send("crab", script)
            assert extract_images(model.requests[-1]) == [PNG]
            assert list_tool_results(daemon) == [f"image: png, 2x1 pixels, {len(PNG)} bytes"]
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            assert (await client.send("crab", "!say still there")).content == "still there"
            assert extract_images(model.requests[-1]) == [PNG]


@pytest.mark.req("files.read.images.blind")
async def test_a_model_that_refuses_images_is_asked_again_without_them(tmp_path: Path) -> None:
    picture = tmp_path / "beach.png"
    picture.write_bytes(PNG)
    async with (
        model_server() as model,
        run_daemon(tmp_path, model, hooks={}) as daemon,
        daemon.client() as client,
    ):
        model.is_text_only = True
        reply = await client.send("crab", script_tool_calls([("read", {"path": str(picture)})]))
        assert reply.content == "done"
        assert [len(extract_images(request)) for request in model.requests] == [0, 1, 0]
        (text,) = list_tool_results(daemon)
        assert text.endswith("(the image itself is left out: this model does not take it)")
        await client.send("crab", "!say ok")
        assert [len(extract_images(request)) for request in model.requests] == [0, 1, 0, 0]


@pytest.mark.req("files.read.images.blind")
async def test_other_errors_of_the_model_are_reported(tmp_path: Path) -> None:
    """It is asked again without the image, which may be the cause; then the user gets the error."""
    picture = tmp_path / "beach.png"
    picture.write_bytes(PNG)
    script = f'!tool read {{"path": "{picture}"}}\n!then\n!status 400 the moon is wrong'
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        with pytest.raises(Exception, match="the moon is wrong"):
            await client.send("crab", script)
        assert [len(extract_images(request)) for request in daemon.model.requests] == [0, 1, 0]
