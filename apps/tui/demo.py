"""Plays the chat in a terminal and takes pictures of it: `python -m apps.tui.demo [FOLDER]`.

The program, the daemon and the tools are real; only the model says what stands here. Clocks are set
to the same time in every picture, so that it is the same picture every time.
"""

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from apps.tui.demo_model import Act, Actor, Play, acting
from apps.tui.demo_svg import Cell, svg
from apps.tui.tests.chat.terminal import DOWN, ENTER, Daemon, Terminal, chatting, ctrl

ROOT = Path(__file__).parents[2]
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
PLAY: Play = {
    "Why does": [
        Act(think="Let me look at the file, and at what it prints.", calls=[READ, RUN]),
        Act("It stops at noon. I will mend it.", calls=[EDIT]),
        Act(calls=[RUN]),
        Act(ANSWER),
    ],
    "Make it a page": [
        Act("Gladly. Two things first:", calls=[("ask_user", QUESTIONS)]),
        Act("Then it is the **Old Port** and the **Lighthouse**, in metres."),
    ],
    "Is anything else": [
        Act("I will have that looked at.", calls=[("delegate", TASKS)]),
        Act("Nothing but that there are no tests."),
    ],
    "Find every use": [
        Act(calls=[("bash", {"command": "grep -n HOURS tides.py"})]),
        Act("Two uses, both in tides.py.", waits=True),
    ],
    "Check the tests": [Act(calls=[READ]), Act("There are none to check.", waits=True)],
    "what do you think": [
        Act("It is right now. I would still write a *test* for the hour before midnight.")
    ],
}


async def play(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) / "tides"
        work.mkdir()
        (work / "tides.py").write_text(TABLE)
        async with acting(PLAY) as actor:
            home = prepared(Path(scratch) / "home", actor)
            served = Daemon(home)
            await served.start()
            try:
                async with chatting(home, size=SIZE, cwd=work) as terminal:
                    await scenes(terminal, actor, folder)
            finally:
                await served.kill()


def prepared(home: Path, actor: Actor) -> Path:
    (home / "agents").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "config.toml").write_text(f'[llm]\nbase_url = "{actor.url}"\nmodel = "demo-model"\n')
    for name, text in AGENTS.items():
        (home / "agents" / f"{name}.toml").write_text(text)
    return home


async def scenes(terminal: Terminal, actor: Actor, folder: Path) -> None:
    await terminal.until_view("demo-model")
    await say(terminal, "Why does the tide table stop at noon?")
    await terminal.until_view("▸ ○ Allow")
    terminal.type(ENTER)
    await terminal.until("Both evening tides")
    await terminal.until_view("ready")
    take(terminal, folder / "chat.svg", "A question, the tools it took, and the answer")

    await say(terminal, "Make it a page for the harbour office")
    await terminal.until_view("▸ [ ] Old Port")
    terminal.type(" " + DOWN + DOWN + " ")
    await terminal.until_view("▸ [x] Lighthouse")
    take(terminal, folder / "question.svg", "A form that an agent asks to be filled in")
    terminal.type(ENTER)
    await terminal.until_view("▸ ○ metres")
    terminal.type(ENTER)
    await terminal.until_view("unit: metres")
    terminal.type(ENTER)
    await terminal.until_view("ready")

    await say(terminal, "@owl what do you think?")
    await terminal.until("before midnight")
    await say(terminal, "Is anything else wrong with it?")
    await terminal.until_so(lambda: terminal.view.count("  writing") == 2)
    take(terminal, folder / "agents.svg", "A guest's opinion, and two agents at work for a third")
    actor.go()
    await terminal.until_view("ready")
    terminal.type(ctrl("D"))
    await terminal.left()


async def say(terminal: Terminal, text: str) -> None:
    await terminal.until_view("ready")
    terminal.type(text)
    await terminal.until_view(f"> {text}"[: SIZE[0] - 2])
    terminal.type(ENTER)


def take(terminal: Terminal, path: Path, title: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg(settled(terminal), title))


CLOCK = re.compile(r"\b\d+(?:\.\d)?m?s\b")
SPINNER = re.compile("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]")


def settled(terminal: Terminal) -> list[list[Cell]]:
    """What is in view, with every clock at the same time, without empty rows at the end."""
    rows = [replaced(replaced(list(row), CLOCK, "0.2s"), SPINNER, "⠹") for row in terminal.cells]
    while rows and not "".join(cell.data for cell in rows[-1]).strip():
        rows.pop()
    return rows


def replaced(row: list[Cell], pattern: re.Pattern[str], text: str) -> list[Cell]:
    width = len(row)
    for found in reversed([*pattern.finditer("".join(cell.data for cell in row))]):
        first, end = found.span()
        row[first:end] = [row[first]._replace(data=character) for character in text]
    return [*row, *[row[-1]._replace(data=" ")] * (width - len(row))][:width]


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES))
