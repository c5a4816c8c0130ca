"""The picture of the page in the README can be taken anew."""

from pathlib import Path

import pytest
from PIL import Image

from apps.web.demo import PICTURE, take_picture

from .chromium import require_chromium

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.req("web.demo")
async def test_what_the_picture_shows_can_still_be_played(tmp_path: Path) -> None:
    """Fonts differ between machines, so what is compared is its size and that it is no blank."""
    require_chromium()
    taken = tmp_path / "web.png"
    await take_picture(taken)
    with Image.open(taken) as new, Image.open(PICTURE) as kept:
        assert new.size == kept.size, "`python -m apps.web.demo` takes it anew"
        assert len(new.convert("RGB").getcolors(new.width * new.height) or ()) > 100
