"""The pictures in the docs are those the demo produces."""

from pathlib import Path

import pytest

from docs.chat_demo import IMAGES, play_demo


@pytest.mark.req("chat.demo")
async def test_the_pictures_in_the_docs_show_the_current_chat(tmp_path: Path) -> None:
    await play_demo(tmp_path / "images")
    pictures = {path.name: path.read_text() for path in (tmp_path / "images").iterdir()}
    stored = {path.name: path.read_text() for path in IMAGES.glob("*.svg")}
    assert set(pictures) == {"chat.svg", "question.svg", "agents.svg"}
    stale = [name for name, picture in pictures.items() if stored.get(name) != picture]
    assert not stale, f"{stale} are not as the chat is; `python -m docs.chat_demo` takes them anew"
