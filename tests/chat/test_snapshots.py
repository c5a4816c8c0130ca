"""Snapshots of the rendering at 80 and 40 columns, with and without colour.

`REWRITE_SNAPSHOTS=1` writes them again: check the difference before you commit it. An escape is
written as ␛, so that a snapshot is readable.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest

from crabtalk.protocol import wire
from tests.chat.transcript_drawing import (
    THEMES,
    DrawnTranscript,
    chunk_event,
    end_event,
    feed_event,
    make_tool_call,
    start_event,
    strip_escapes,
    text_events,
    thinking_events,
    tool_result_event,
    tool_start_event,
    tools_complete_event,
)

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
   - [ ] all feet are *dry*

| station | high | low  | remark                                   |
|:--------|-----:|-----:|:-----------------------------------------|
| north   | 4.21 | 0.33 | new gauge, which lags behind             |
| 南      | 3.97 | 0.41 | `offline` since May ⚠️                    |

> People who walk out
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


def draw_answer(drawing: DrawnTranscript) -> None:
    drawing.handle_events(start_event(), *text_events(ANSWER), end_event())


def draw_turn(drawing: DrawnTranscript) -> None:
    drawing.transcript.add_message("Are the tests all right?\nIf not, mend them.", agent="crab")
    drawing.handle_events(start_event(), *thinking_events("Run them first."), after=1.2)
    drawing.handle_events(
        *text_events("Let me run them."),
        tool_start_event(make_tool_call("bash", '{"command": "make test"}')),
    )
    drawing.handle_events(tool_result_event(json.dumps(OUTCOME)), tools_complete_event())
    drawing.handle_events(
        tool_start_event(
            make_tool_call("edit", json.dumps(EDIT), "c2"),
            make_tool_call(
                "read", '{"path": "a/very/long/path/to/a/file/that/is/not/there.py"}', "c3"
            ),
            make_tool_call("ask_user", json.dumps(ASK), "c4"),
        ),
        tool_result_event(
            "no such file: a/very/long/path\ntry another", "c3", is_error=True, milliseconds=7
        ),
        tool_result_event("ok", "c2", milliseconds=12),
        tool_result_event(
            '{"Which beach do you mean?": "the one in the north"}', "c4", milliseconds=95_000
        ),
        tools_complete_event(),
    )
    drawing.handle_events(tool_start_event(make_tool_call("delegate", json.dumps(TASKS), "c5")))
    results = [{"result": "12", "error": None}, {"result": None, "error": "no such beach"}]
    drawing.handle_events(tool_result_event(json.dumps(results), "c5"), tools_complete_event())
    drawing.transcript.add_notice("the daemon was restarted; the conversation goes on", "info")
    drawing.handle_events(
        end_event(wire.STOP_REASON_ERROR, "the model could not be reached; try again")
    )
    drawing.transcript.add_message("What do you make of it?", agent="crab", guest="twin")
    drawing.handle_events(
        start_event("twin", "r2"), *text_events("It **works** for me.", agent="twin"), end_event()
    )


def draw_live_turn(drawing: DrawnTranscript) -> None:
    """A turn in progress, drawn live and not printed."""
    drawing.handle_events(
        start_event(),
        chunk_event("I look in the **nor"),
        tool_start_event(
            make_tool_call("bash", '{"command": "make test"}'),
            make_tool_call("delegate", json.dumps(TASKS), "c2"),
        ),
    )
    drawing.handle_feed_events(
        feed_event(wire.TOOL_PROGRESS, "r1", call_id="c1", content="3/10 stations"),
        feed_event(
            wire.TOOL_START,
            "k1",
            agent="worker:ab",
            parent=("r1", "c2", 0),
            tools=[
                make_tool_call("delegate", '{"tasks": [{"message": "count the small ones"}]}', "d1")
            ],
        ),
        feed_event(wire.THINKING_START, "k2", agent="helper", parent=("k1", "d1", 0)),
        feed_event(wire.TEXT_START, "k3", agent="scout", parent=("r1", "c2", 1)),
        feed_event(wire.DONE, "k3", agent="scout", parent=("r1", "c2", 1)),
    )
    drawing.now += 12.3
    drawing.printed += "".join(f"{line}\n" for line in drawing.live_lines)


@pytest.mark.req("chat.show.snapshot")
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("scene", [draw_answer, draw_turn, draw_live_turn])
def test_the_rendering_matches_the_snapshot(
    scene: Callable[[DrawnTranscript], None], width: int, theme: str
) -> None:
    drawing = DrawnTranscript(width, THEMES[theme])
    scene(drawing)
    shown = drawing.printed.replace("\x1b", "␛")
    snapshot = SNAPSHOTS / f"{scene.__name__.removeprefix('draw_')}-{width}-{theme}.txt"
    if os.environ.get("REWRITE_SNAPSHOTS"):
        snapshot.write_text(shown)
    assert snapshot.read_text() == shown


@pytest.mark.req("chat.show.narrow")
@pytest.mark.parametrize("width", [80, 40, 20])
@pytest.mark.parametrize("scene", [draw_answer, draw_turn, draw_live_turn])
def test_a_terminal_shows_each_line_as_one_line(
    scene: Callable[[DrawnTranscript], None], width: int
) -> None:
    """Also in pyte, which computes widths in its own way."""
    drawing = DrawnTranscript(width, THEMES["colour"])
    scene(drawing)
    lines = drawing.printed.splitlines()
    screen = pyte.Screen(width, len(lines) + 1)
    pyte.Stream(screen).feed("".join(f"{line}\r\n" for line in lines))
    shown = [line.rstrip() for line in screen.display[:-1]]
    assert [line.replace("\ufe0f", "") for line in shown] == [
        line.replace("\ufe0f", "").rstrip() for line in strip_escapes(lines)
    ]
    assert (screen.cursor.x, screen.cursor.y) == (0, len(lines))
