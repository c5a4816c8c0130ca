"""Run a scripted chat in a terminal and take screenshots: `python -m docs.chat_demo [FOLDER]`.

The program, the daemon and the tools are real; only the model is scripted. All clocks in a picture
show the same time, so the pictures are the same on every run.
"""

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from docs.chat_demo_model import DemoAnswer, DemoModel, Script, run_model_server
from docs.terminal_svg import Cell, render_svg
from tests.chat.terminal import (
    DOWN,
    ENTER,
    ChatTerminal,
    KillableDaemon,
    get_control_key,
    open_chat,
)

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SIZE = (84, 41)
AGENTS = {
    "crab": 'description = "General helper"\nprompt = "You are crab."\nthinking = true\n'
    'approve = ["edit"]\n',
    "owl": 'description = "Reads twice"\nprompt = "You are owl."\n',
    "scout": 'description = "Looks around"\nprompt = "You are scout."\n',
}
TABLE = '''"""Tides of one day."""

HOURS = range(0, 12)


def table(levels):
    return [(hour, levels[hour]) for hour in HOURS if hour in levels]


print(table({5: 1.2, 11: 4.1, 17: 1.3, 23: 4.0}))
'''
READ = ("read", {"path": "tides.py"})
RUN = ("bash", {"command": "python3 tides.py"})
EDIT = (
    "edit",
    {
        "path": "tides.py",
        "old_string": "HOURS = range(0, 12)",
        "new_string": "HOURS = range(24)",
    },
)
ANSWER = """\
The table stopped at noon because `HOURS` did. A day has **24** of them:

```python
HOURS = range(24)
```

| tide | hour | metres |
|---|---:|---:|
| low  |  5 | 1.2 |
| high | 11 | 4.1 |
| low  | 17 | 1.3 |
| high | 23 | 4.0 |

Both evening tides are there now.
"""
QUESTIONS = {
    "questions": [
        {
            "question": "Which harbours shall the table cover?",
            "header": "harbours",
            "options": [
                {"label": "Old Port", "description": "where the measurements are from"},
                {"label": "North Quay", "description": "half an hour later"},
                {"label": "Lighthouse", "description": "no gauge since March"},
            ],
            "multi_select": True,
        },
        {"question": "In which unit?", "header": "unit", "options": ["metres", "feet"]},
    ]
}
TASKS = {
    "tasks": [
        {"agent": "scout", "message": "Find every use of HOURS"},
        {"agent": "scout", "message": "Check the tests"},
    ]
}
SCRIPT: Script = {
    "Why does": [
        DemoAnswer(think="Let me look at the file, and at what it prints.", calls=[READ, RUN]),
        DemoAnswer("It stops at noon. I will mend it.", calls=[EDIT]),
        DemoAnswer(calls=[RUN]),
        DemoAnswer(ANSWER),
    ],
    "Make it a page": [
        DemoAnswer("Gladly. Two things first:", calls=[("ask_user", QUESTIONS)]),
        DemoAnswer("Then it is the **Old Port** and the **Lighthouse**, in metres."),
    ],
    "Is anything else": [
        DemoAnswer("I will have that looked at.", calls=[("delegate", TASKS)]),
        DemoAnswer("Nothing but that there are no tests."),
    ],
    "Find every use": [
        DemoAnswer(calls=[("bash", {"command": "grep -n HOURS tides.py"})]),
        DemoAnswer("Two uses, both in tides.py.", waits=True),
    ],
    "Check the tests": [
        DemoAnswer(calls=[READ]),
        DemoAnswer("There are none to check.", waits=True),
    ],
    "what do you think": [
        DemoAnswer("It is right now. I would still write a *test* for the hour before midnight.")
    ],
}


async def play_demo(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) / "tides"
        work.mkdir()
        (work / "tides.py").write_text(TABLE)
        async with run_model_server(SCRIPT) as actor:
            home = prepare_home(Path(scratch) / "home", actor)
            served = KillableDaemon(home)
            await served.start()
            try:
                async with open_chat(home, size=SIZE, cwd=work) as terminal:
                    await play_scenes(terminal, actor, folder)
            finally:
                await served.kill()


def prepare_home(home: Path, actor: DemoModel) -> Path:
    (home / "agents").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "config.toml").write_text(f'[llm]\nbase_url = "{actor.url}"\nmodel = "demo-model"\n')
    for name, text in AGENTS.items():
        (home / "agents" / f"{name}.toml").write_text(text)
    return home


async def play_scenes(terminal: ChatTerminal, actor: DemoModel, folder: Path) -> None:
    await terminal.wait_for_view("demo-model")
    await type_message(terminal, "Why does the tide table stop at noon?")
    await terminal.wait_for_view("▸ ○ Allow")
    terminal.type_keys(ENTER)
    await terminal.wait_for_text("Both evening tides")
    await terminal.wait_for_view("ready")
    take_screenshot(terminal, folder / "chat.svg", "A question, the tools it took, and the answer")

    await type_message(terminal, "Make it a page for the harbour office")
    await terminal.wait_for_view("▸ [ ] Old Port")
    terminal.type_keys(" " + DOWN + DOWN + " ")
    await terminal.wait_for_view("▸ [x] Lighthouse")
    take_screenshot(terminal, folder / "question.svg", "A form that an agent asks to be filled in")
    terminal.type_keys(ENTER)
    await terminal.wait_for_view("▸ ○ metres")
    terminal.type_keys(ENTER)
    await terminal.wait_for_view("unit: metres")
    terminal.type_keys(ENTER)
    await terminal.wait_for_view("ready")

    await type_message(terminal, "@owl what do you think?")
    await terminal.wait_for_text("before midnight")
    await type_message(terminal, "Is anything else wrong with it?")
    await terminal.wait_until(lambda: terminal.view_text.count("  writing") == 2)
    take_screenshot(
        terminal, folder / "agents.svg", "A guest's opinion, and two agents at work for a third"
    )
    actor.release()
    await terminal.wait_for_view("ready")
    terminal.type_keys(get_control_key("D"))
    await terminal.wait_for_exit()


async def type_message(terminal: ChatTerminal, text: str) -> None:
    await terminal.wait_for_view("ready")
    terminal.type_keys(text)
    await terminal.wait_for_view(f"> {text}"[: SIZE[0] - 2])
    terminal.type_keys(ENTER)


def take_screenshot(terminal: ChatTerminal, path: Path, title: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_svg(normalize_screen(terminal), title))


CLOCK = re.compile(r"\b\d+(?:\.\d)?m?s\b")
SPINNER = re.compile("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]")


def normalize_screen(terminal: ChatTerminal) -> list[list[Cell]]:
    """Return the visible rows, with all clocks at the same time, without empty rows at the end."""
    rows = [
        replace_cells(replace_cells(list(row), CLOCK, "0.2s"), SPINNER, "⠹")
        for row in terminal.cells
    ]
    while rows and not "".join(cell.data for cell in rows[-1]).strip():
        rows.pop()
    return rows


def replace_cells(row: list[Cell], pattern: re.Pattern[str], text: str) -> list[Cell]:
    width = len(row)
    for found in reversed([*pattern.finditer("".join(cell.data for cell in row))]):
        first, end = found.span()
        row[first:end] = [row[first]._replace(data=character) for character in text]
    return [*row, *[row[-1]._replace(data=" ")] * (width - len(row))][:width]


if __name__ == "__main__":
    asyncio.run(play_demo(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES))
