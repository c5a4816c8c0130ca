"""An editor for tests: it records the pages it is opened with, and replaces words in them.

editor = FakeEditor(tmp_path, [("scripted", "other")], [...])    one list for each opening
await run_at_terminal("agents", "edit", "crab", **editor.env)
editor.pages_seen                                                the pages it was opened with
"""

import json
import shlex
import sys
from pathlib import Path

PROGRAM = """\
import json, pathlib, sys
folder, path = map(pathlib.Path, sys.argv[1:])
number = len(list(folder.glob("seen-*")))
text = path.read_text()
(folder / f"seen-{number}").write_text(text)
orders = json.loads((folder / "orders.json").read_text())
for old, new in orders[number] if number < len(orders) else ():
    if old == "exit":
        sys.exit(int(new))
    assert old in text, (old, text)
    text = text.replace(old, new, 1)
path.write_text(text)
"""


class FakeEditor:
    def __init__(self, path: Path, *orders: list[tuple[str, str]]) -> None:
        self._path = path / "editor"
        self._path.mkdir()
        (self._path / "orders.json").write_text(json.dumps(orders))
        (self._path / "editor.py").write_text(PROGRAM)
        (path / "drafts").mkdir()
        self.drafts = path / "drafts"

    @property
    def env(self) -> dict[str, str]:
        words = [sys.executable, "-S", str(self._path / "editor.py"), str(self._path)]
        return {"VISUAL": "", "EDITOR": shlex.join(words), "TMPDIR": str(self.drafts)}

    @property
    def pages_seen(self) -> list[str]:
        return [path.read_text() for path in sorted(self._path.glob("seen-*"))]

    @property
    def remaining_drafts(self) -> list[str]:
        """The drafts that were not deleted."""
        return [path.read_text() for path in sorted(self.drafts.glob("**/*.toml"))]
