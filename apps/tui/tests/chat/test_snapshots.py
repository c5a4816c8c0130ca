"""The rendering as it was last looked at, at 80 and at 40 columns, in colour and without.

`REWRITE_SNAPSHOTS=1` has them written anew: look at the difference before you keep it. An escape
is written as ␛, so that a snapshot can be read.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest

from apps.tui.tests.chat.drawn import (
    LOOKS,
    Drawn,
    bare,
    call,
    calls,
    chunk,
    complete,
    end,
    on_feed,
    result,
    said,
    start,
    thought,
)
from crabtalk.protocol import wire

SNAPSHOTS = Path(__file__).with_name("snapshots")
ANSWER = """\
# Tides

The **water** rises *twice* a day; `tides.csv` says when, and the
[harbour office](https://example.org/tides) checks it. ~~Once a day~~ was wrong.

## What to do

1. Read the file:
   ```python
   def heights(path: Path) -> list[float]:
       \"\"\"Metres above the mean,
       oldest first.\"\"\"
       return [float(x) for x in path.read_text().split()]  # all
   ```
2. Compare it:
   - with **yesterday**
     - hour by hour, because the gauge in the north is slow and lags behind the others
   - with the table
3. Done when:
   - [x] every station is there
   - [ ] nobody is *wet*

| station | high | low  | remark                                   |
|:--------|-----:|-----:|:-----------------------------------------|
| north   | 4.21 | 0.33 | new gauge, which lags behind             |
| 南      | 3.97 | 0.41 | `offline` since May ⚠️                    |

> Whoever walks out
> must know **when to turn back**.
>
> - and how

```js
/* the moon
   does it */ const pull = (t) => `${t}h`; // twice
```

---

潮の満ち引きは、月の引力によって起こる。一日に二回、水面が上がり、そして下がる。
<b>Tags</b> &amp; escapes \\x1b[31m are text.
"""
EDIT = {"path": "tides.py", "old_string": "a = 1\nb = 2\n", "new_string": "a = 1\nb = 3\nc = 4\n"}
TASKS = {"tasks": [{"message": "count shells"}, {"agent": "scout", "message": "find the tides"}]}
ASK = {"questions": [{"question": "Which beach do you mean?", "header": "Beach"}]}
OUTCOME = {"stdout": "", "stderr": "\n".join(f"E{n} failed" for n in range(9)), "exit_code": 2}


def answer(drawn: Drawn) -> None:
    drawn.feed(start(), *said(ANSWER), end())


def turn(drawn: Drawn) -> None:
    drawn.transcript.begin("Are the tests all right?\nIf not, mend them.", agent="crab")
    drawn.feed(start(), *thought("Run them first."), after=1.2)
    drawn.feed(*said("Let me run them."), calls(call("bash", '{"command": "make test"}')))
    drawn.feed(result(json.dumps(OUTCOME)), complete())
    drawn.feed(
        calls(
            call("edit", json.dumps(EDIT), "c2"),
            call("read", '{"path": "a/very/long/path/to/a/file/that/is/not/there.py"}', "c3"),
            call("ask_user", json.dumps(ASK), "c4"),
        ),
        result("no such file: a/very/long/path\ntry another", "c3", is_error=True, milliseconds=7),
        result("ok", "c2", milliseconds=12),
        result('{"Which beach do you mean?": "the one in the north"}', "c4", milliseconds=95_000),
        complete(),
    )
    drawn.feed(calls(call("delegate", json.dumps(TASKS), "c5")))
    results = [{"result": "12", "error": None}, {"result": None, "error": "no such beach"}]
    drawn.feed(result(json.dumps(results), "c5"), complete())
    drawn.transcript.notice("the daemon was restarted; the conversation goes on", "info")
    drawn.feed(end(wire.STOP_REASON_ERROR, "the model could not be reached; try again"))
    drawn.transcript.begin("What do you make of it?", agent="crab", guest="twin")
    drawn.feed(start("twin", "r2"), *said("It **works** for me.", agent="twin"), end())


def live(drawn: Drawn) -> None:
    """Not printed, but drawn: a turn in the middle."""
    drawn.feed(
        start(),
        chunk("I look in the **nor"),
        calls(call("bash", '{"command": "make test"}'), call("delegate", json.dumps(TASKS), "c2")),
    )
    drawn.follow(
        on_feed(wire.TOOL_PROGRESS, "r1", call_id="c1", content="3/10 stations"),
        on_feed(
            wire.TOOL_START,
            "k1",
            agent="worker:ab",
            parent=("r1", "c2", 0),
            tools=[call("delegate", '{"tasks": [{"message": "count the small ones"}]}', "d1")],
        ),
        on_feed(wire.THINKING_START, "k2", agent="helper", parent=("k1", "d1", 0)),
        on_feed(wire.TEXT_START, "k3", agent="scout", parent=("r1", "c2", 1)),
        on_feed(wire.DONE, "k3", agent="scout", parent=("r1", "c2", 1)),
    )
    drawn.now += 12.3
    drawn.printed += "".join(f"{line}\n" for line in drawn.live)


@pytest.mark.req("chat.show.snapshot")
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("scene", [answer, turn, live])
def test_it_looks_as_it_did(scene: Callable[[Drawn], None], width: int, look: str) -> None:
    drawn = Drawn(width, LOOKS[look])
    scene(drawn)
    shown = drawn.printed.replace("\x1b", "␛")
    snapshot = SNAPSHOTS / f"{scene.__name__}-{width}-{look}.txt"
    if os.environ.get("REWRITE_SNAPSHOTS"):
        snapshot.write_text(shown)
    assert snapshot.read_text() == shown


@pytest.mark.req("chat.show.narrow")
@pytest.mark.parametrize("width", [80, 40, 20])
@pytest.mark.parametrize("scene", [answer, turn, live])
def test_a_terminal_shows_each_line_as_one_line(scene: Callable[[Drawn], None], width: int) -> None:
    """By a terminal that counts places its own way."""
    drawn = Drawn(width, LOOKS["colour"])
    scene(drawn)
    lines = drawn.printed.splitlines()
    screen = pyte.Screen(width, len(lines) + 1)
    pyte.Stream(screen).feed("".join(f"{line}\r\n" for line in lines))
    shown = [line.rstrip() for line in screen.display[:-1]]
    assert [line.replace("\ufe0f", "") for line in shown] == [
        line.replace("\ufe0f", "").rstrip() for line in bare(lines)
    ]
    assert (screen.cursor.x, screen.cursor.y) == (0, len(lines))
