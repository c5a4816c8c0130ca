"""Key echo time, frame rate and opening time of the chat.

The bounds are generous, because the machine may be busy. bench/terminal_keys.py measures exactly.
"""

import re
import time
from pathlib import Path
from statistics import median

import pytest

from bench.terminal_keys import (
    fill_conversation,
    measure_echoes,
    measure_import,
    measure_opening,
    run_daemon_with_model,
)
from tests.chat.terminal import open_chat, run_scripted_daemon
from tests.chat.test_terminal import send_message

TRIES = 20
BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"


@pytest.mark.req("chat.keys.latency")
@pytest.mark.clock
def test_a_key_is_echoed_at_once_while_an_answer_streams() -> None:
    lags, _ = measure_echoes(40)
    assert median(lags) <= 16, sorted(lags)


@pytest.mark.req("chat.history.fast")
@pytest.mark.clock
def test_a_conversation_of_ten_thousand_lines_opens_at_once() -> None:
    with run_daemon_with_model() as home:
        fill_conversation(home, 10_000)
        # Alternating, so that other load affects both alike; one undisturbed try is enough.
        differences = (measure_opening(home) - measure_import() for _ in range(TRIES))
        assert any(difference <= 200 for difference in differences)


@pytest.mark.req("chat.frames")
@pytest.mark.clock
async def test_a_stream_is_drawn_at_most_thirty_times_a_second_in_one_piece_each(
    tmp_path: Path,
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_message(terminal, "!chunks 800 400")
        await terminal.wait_until(lambda: len(re.findall(rb"\d{19}", terminal.written)) > 40)
        since, start = len(terminal.written), time.monotonic()
        await terminal.wait_for_view("ready")
        seconds = time.monotonic() - start
        prompt = bytes(terminal.written[since:])
        # A frame prints and redraws in one piece; the bounds have some slack.
        assert 5 <= prompt.count(BEGIN) <= 32 * seconds + 5
        pieces = re.split(re.escape(END), prompt)[1:-1]
        assert all(piece.startswith(BEGIN) for piece in pieces)
