"""The pictures in the pages are those the demo takes."""

from pathlib import Path

import pytest

from docs.chat_demo import IMAGES, play_demo


@pytest.mark.req("chat.demo")
async def test_the_pictures_show_the_chat_as_it_is(tmp_path: Path) -> None:
    await play_demo(tmp_path / "images")
    taken = {path.name: path.read_text() for path in (tmp_path / "images").iterdir()}
    kept = {path.name: path.read_text() for path in IMAGES.glob("*.svg")}
    assert set(taken) == {"chat.svg", "question.svg", "agents.svg"}
    stale = [name for name, picture in taken.items() if kept.get(name) != picture]
    assert not stale, f"{stale} are not as the chat is; `python -m docs.chat_demo` takes them anew"
