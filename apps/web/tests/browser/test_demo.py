"""The screenshot of the page in the README can be taken again."""

from pathlib import Path

import pytest
from PIL import Image

from apps.web.demo import PICTURE, take_picture

from .chromium import require_chromium

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.req("web.demo")
async def test_the_screenshot_can_be_taken_again(tmp_path: Path) -> None:
    """Fonts differ between machines, so only its size is compared, and that it is not blank."""
    require_chromium()
    picture = tmp_path / "web.png"
    await take_picture(picture)
    with Image.open(picture) as new, Image.open(PICTURE) as committed:
        assert new.size == committed.size, "`python -m apps.web.demo` takes it anew"
        assert len(new.convert("RGB").getcolors(new.width * new.height) or ()) > 100
