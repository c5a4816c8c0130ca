"""The transcript: the CPU time of rendering a streamed answer, and of a long history.

The answer has every kind of Markdown block. It comes a token at a time, 200 a second, and is drawn
30 times a second as in the chat: finished lines are taken, the others rendered again.
"""

import time
from collections.abc import Iterator

from crabtalk.chat.theme import Theme
from crabtalk.chat.transcript import ChatTranscript
from crabtalk.protocol import wire

from .tables import BenchTable

TOKENS = 4000
RATE = 200  # tokens a second
FRAMES = 30  # a second
WIDTH, HEIGHT = 80, 20

ANSWER = """\
## How the tide is read

The **water** rises twice a day, and the table below says *when*. Each station writes what it
measured to `tides.csv`, and the [harbour office](https://example.org/tides) checks it at noon.

1. Read the file, a line at a time, and skip what is not a number.
   - A gap of an hour is filled by the mean of its neighbours.
   - A longer one stays a gap, and is shown as one.
2. Compare it with the day before.

```python
def heights(path: Path) -> Iterator[float]:
    \"\"\"Metres above the mean, oldest first.\"\"\"
    for line in path.read_text().splitlines():
        if (found := NUMBER.fullmatch(line)) is not None:
            yield float(found["metres"])  # what is no number is a gap
```

| station | high  | low   | remark              |
|---------|------:|------:|---------------------|
| north   | 4.21  | 0.33  | new gauge           |
| south   | 3.97  | 0.41  | `offline` since May |

> People who walk out must know when to turn back.

"""


def split_answer(count: int = TOKENS) -> Iterator[str]:
    """Split the answer into tokens of four characters, about the length of a model's tokens."""
    text = ANSWER * (count * 4 // len(ANSWER) + 1)
    return (text[at : at + 4] for at in range(0, count * 4, 4))


def measure_stream(width: int = WIDTH, count: int = TOKENS) -> tuple[float, float, int]:
    """Return seconds for the whole answer and for the worst frame, and the most live lines."""
    transcript = ChatTranscript(Theme())
    transcript.handle_event(wire.StreamEvent(start=wire.StreamStart(agent="crab", run_id="1")), 0.0)
    worst_frame, max_live, last_draw = 0.0, 0, 0.0
    start = time.process_time()
    for number, token in enumerate(split_answer(count)):
        now = number / RATE
        transcript.handle_event(wire.StreamEvent(chunk=wire.StreamChunk(content=token)), now)
        if now - last_draw >= 1 / FRAMES:
            last_draw = now
            before = time.process_time()
            transcript.take_text(width)
            max_live = max(max_live, len(transcript.live_lines(width, HEIGHT, now)))
            worst_frame = max(worst_frame, time.process_time() - before)
    transcript.handle_event(wire.StreamEvent(end=wire.StreamEnd(agent="crab")), count / RATE)
    transcript.take_text(width)
    return time.process_time() - start, worst_frame, max_live


def measure_history(lines: int) -> float:
    """Return seconds to lay out a conversation of about `lines` lines."""
    answer_lines = ANSWER.count("\n")
    messages = [
        wire.ConversationMessage(role="assistant", content=ANSWER)
        for _ in range(lines // answer_lines)
    ]
    transcript = ChatTranscript(Theme())
    start = time.process_time()
    transcript.add_history(messages)
    transcript.take_text(WIDTH)
    return time.process_time() - start


def run_benchmark() -> list[BenchTable]:
    measure_stream(count=400)  # the colours of code are loaded by the first that needs them
    seconds = TOKENS / RATE
    table = BenchTable(
        f"Terminal, an answer of {TOKENS} tokens at {RATE} a second",
        ["columns", "CPU s", "% of a core", "µs a token", "worst frame, ms", "lines redrawn"],
        note="At most 15 % of a core is the target.",
    )
    for width in (WIDTH, 40):
        spent, worst_frame, max_live = min(measure_stream(width) for _ in range(3))
        share, us_per_token = 100 * spent / seconds, spent / TOKENS * 1e6
        table.add_row(
            str(width),
            f"{spent:.2f}",
            f"{share:.1f}",
            f"{us_per_token:.0f}",
            f"{worst_frame * 1e3:.1f}",
            str(max_live),
        )
    read_back = BenchTable("Terminal, a conversation read back", ["lines", "CPU ms"])
    for lines in (100, 1000, 10_000):
        read_back.add_row(f"{lines:,}", f"{measure_history(lines) * 1e3:.0f}")
    return [table, read_back]
