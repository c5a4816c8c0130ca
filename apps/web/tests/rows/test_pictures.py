"""Pictures: QR codes that every reader reads, and placeholders that resemble their pictures."""

import random
from base64 import b64encode
from typing import Any

import pytest
import segno
from PIL import Image
from playwright.async_api import Page
from segno import encoder

from crabtalk_web.gateway.thumbhash import compute_thumbhash

pytestmark = pytest.mark.asyncio(loop_scope="session")


def encode_qr(text: str, mask: int) -> list[list[bool]]:
    code = segno.make_qr(text.encode(), error="m", mode="byte", boost_error=False, mask=mask)
    return [[bool(module) for module in row] for row in code.matrix]


# Text lengths that fill a code of each version from 1 on, at level M.
FULL = (
    14,
    26,
    42,
    62,
    84,
    106,
    122,
    152,
    180,
    213,
    251,
    287,
    331,
    362,
    412,
    450,
    504,
    560,
    624,
    666,
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789#/-_:."


@pytest.mark.req("rows.qr")
@pytest.mark.slow
async def test_a_qr_code_equals_that_of_another_encoder(page: Page) -> None:
    chance = random.Random(3)
    for version, length in enumerate(FULL, start=1):
        text, mask = "".join(chance.choices(LETTERS, k=length)), version % 8
        code = await page.evaluate("([t, m]) => rows.qr.qrOf(t, m)", [text, mask])
        assert len(code) == 17 + 4 * version
        assert code == encode_qr(text, mask)


@pytest.mark.req("rows.qr")
async def test_a_short_qr_code_is_padded_as_the_standard_says(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other encoder puts a word of zeros before the padding; readers skip it, so we skip it
    here."""

    def to_the_next_word(buffer: Any, version: int, length: int) -> None:
        buffer.extend([0] * (-length % 8))

    monkeypatch.setattr(encoder, "write_padding_bits", to_the_next_word)
    for length in (1, 7, 15, 63, 150, 200, 214, 400, 600):
        text = (LETTERS * 20)[length : 2 * length]
        code = await page.evaluate("(t) => rows.qr.qrOf(t)", text)
        assert code in [encode_qr(text, mask) for mask in range(8)]
    text = "é\N{CRAB}" * 20
    assert await page.evaluate("([t, m]) => rows.qr.qrOf(t, m)", [text, 5]) == encode_qr(text, 5)


@pytest.mark.req("rows.qr")
async def test_a_qr_code_has_a_name_and_room_around_it(page: Page) -> None:
    text = "http://127.0.0.1:3005/join#abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"
    drawn = await page.evaluate(
        """(t) => {
          const svg = rows.qr.renderQr(t);
          rows.shelf.replaceChildren(svg);
          return [svg.getAttribute("viewBox"), rows.qr.qrOf(t).length];
        }""",
        text,
    )
    assert drawn[0] == f"0 0 {drawn[1] + 8} {drawn[1] + 8}"
    await page.get_by_role("img", name="QR code").wait_for()


@pytest.mark.req("rows.qr")
async def test_a_text_too_long_for_a_qr_code_is_refused_with_a_message(page: Page) -> None:
    told = await page.evaluate(
        "() => { try { rows.qr.qrOf('x'.repeat(700)); } catch (error) { return error.message; } }"
    )
    assert "show it as a link" in told


def make_picture(width: int, height: int, *, has_alpha: bool = False) -> tuple[Image.Image, str]:
    image = Image.new("RGBA", (width, height))
    for x in range(width):
        for y in range(height):
            alpha = 255 * x // width if has_alpha else 255
            image.putpixel((x, y), (255 * x // width, 255 * y // height, 90, alpha))
    return image, b64encode(compute_thumbhash(width, height, image.tobytes())).decode()


@pytest.mark.req("rows.placeholder")
@pytest.mark.parametrize(("width", "height"), [(32, 32), (32, 20), (16, 32), (32, 5)])
async def test_a_placeholder_resembles_its_picture(page: Page, width: int, height: int) -> None:
    image, hashed = make_picture(width, height)
    shown = await page.evaluate(
        """(hashed) => {
          const bytes = Uint8Array.from(atob(hashed), (c) => c.charCodeAt(0));
          const { width, height, rgba } = rows.thumbhash.pixelsOf(bytes);
          return [width, height, [...rgba]];
        }""",
        hashed,
    )
    small = image.resize((shown[0], shown[1])).tobytes()
    apart = sum(abs(a - b) for a, b in zip(small, shown[2], strict=True)) / len(small)
    assert apart < 12
    assert abs(shown[0] / shown[1] - width / height) < 0.2 * width / height + 0.1


@pytest.mark.req("rows.placeholder")
async def test_a_placeholder_is_transparent_where_its_picture_is(page: Page) -> None:
    _, hashed = make_picture(32, 32, has_alpha=True)
    alpha = await page.evaluate(
        """(hashed) => {
          const bytes = Uint8Array.from(atob(hashed), (c) => c.charCodeAt(0));
          const { rgba } = rows.thumbhash.pixelsOf(bytes);
          return [rgba[3], rgba.at(-1)];
        }""",
        hashed,
    )
    assert alpha[0] < 100
    assert alpha[1] > 160


@pytest.mark.req("rows.placeholder")
async def test_an_invalid_placeholder_is_null(page: Page) -> None:
    odd = ["", "a", "!!", "AAAA", "AAAAAAAA", "é", b64encode(bytes(5)).decode()]
    assert await page.evaluate(
        "(odd) => odd.map((one) => rows.thumbhash.placeholder(one))", odd
    ) == [None] * len(odd)
