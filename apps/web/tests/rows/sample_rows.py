"""A conversation with a row of every kind."""

import json
from base64 import b64encode
from typing import Any

from crabtalk_web.gateway.thumbhash import compute_thumbhash

NOON = 1_769_904_000_000

MARKDOWN = """\
# What I found

The parser **reads every line once**; the slow part is `merge()`, which *sorts* ~~twice~~ again.
See https://example.com/notes_on_(sorting), <mail@example.com>
and [the manual](https://docs.example.org "Manual").

1. First measure
2. Then change
   - one thing
   - at a time

- [x] Benchmarks
- [ ] Release notes

> A quote of a person, over
> two lines.

| Case | Before | After |
|:-----|-------:|:-----:|
| small | 12 ms | 11 ms |
| large | 4,210 ms | 96 ms |

```python
from functools import lru_cache

@lru_cache(maxsize=None)
def merge(left: list[int], right: list[int]) -> list[int]:
    \"\"\"Keeps order.\"\"\"
    return sorted(left + right)  # 2 log n
```

![a picture elsewhere](https://example.com/a.png) and a file of yours: [notes](docs/notes.md).
"""

OWL = {"id": "c1", "name": "owl", "kind": "guest", "hue": 265}
TASK = {"id": "c2", "name": "scout", "kind": "task", "hue": 150}


def make_row(kind: str, key: str, **rest: Any) -> dict[str, Any]:
    return {"kind": kind, "id": key, "time": NOON, "revision": 1, "speaker": None, **rest}


def make_tool_row(
    name: str, call: str, title: str, args: dict[str, Any], **rest: Any
) -> dict[str, Any]:
    fields = {"state": "done", "result": "", "durationMs": 0, "children": [], "task": None, **rest}
    more = {"name": name, "title": title, "description": title, "args": args, **fields}
    return make_row("tool", call, call=call, **more)


def make_user_row(name: str, text: str, **rest: Any) -> dict[str, Any]:
    return make_row(
        "user",
        name,
        **{"text": text, "files": [], "state": "sent", "problem": "", "progress": None, **rest},
    )


def make_text_row(name: str, words: str, **rest: Any) -> dict[str, Any]:
    return make_row("text", name, **{"text": words, "thinking": False, **rest})


def make_picture_row(name: str) -> dict[str, Any]:
    pixels = bytes(
        v for y in range(21) for x in range(32) for v in (220 - 6 * y, 150, 90 + 4 * x, 255)
    )
    hashed = b64encode(compute_thumbhash(32, 21, pixels)).decode()
    image = {"width": 640, "height": 420, "thumbhash": hashed}
    return make_row(
        "file",
        name,
        role="agent",
        ref="pic",
        name="beach.png",
        size=48_211,
        mimeType="image/png",
        image=image,
    )


def format_shell_result(stdout: str, stderr: str = "", code: int = 0) -> str:
    return json.dumps({"stdout": stdout, "stderr": stderr, "exit_code": code})


def list_rows() -> list[dict[str, Any]]:
    edit = {
        "path": "src/merge.py",
        "old_string": "def merge(a, b):\n    out = a + b\n    out.sort()\n    return out",
        "new_string": "def merge(left, right):\n    out = left + right\n    return out[::-1]",
    }
    nested = make_tool_row(
        "task",
        "n1",
        "tester — run the tests",
        {"prompt": "Run them."},
        state="running",
        task={"name": "tester", "title": "run the tests", "isActive": True},
        speaker=TASK,
        children=[
            make_tool_row(
                "bash",
                "n2",
                "Run `pytest -q`",
                {"command": "pytest -q"},
                state="running",
                speaker=TASK,
            )
        ],
    )
    return [
        make_user_row(
            "u1", "Why is it slow?\nLook at `merge` please.", files=[make_picture_row("f0")]
        ),
        make_text_row("t0", "Let me think about *sorting*.", thinking=True),
        make_tool_row(
            "bash",
            "b1",
            "Run `git log --oneline`",
            {"command": "git log --oneline | head -5 # newest", "timeout": 20},
            result=format_shell_result(
                "\x1b[33m1f2e3d\x1b[0m Faster merge\n\x1b[33ma4b5c6\x1b[0m Tests\n" * 14
            ),
            durationMs=41,
        ),
        make_tool_row(
            "read",
            "r1",
            "Read `src/merge.py`",
            {"path": "src/merge.py", "offset": 3},
            result="3\tdef merge(a, b):\n4\t    return sorted(a + b)\n\n--- 9 total lines ---",
            durationMs=3,
        ),
        make_tool_row("edit", "e1", "Edit `src/merge.py`", edit, result="ok", durationMs=6),
        make_tool_row(
            "bash",
            "b2",
            "Run `make test`",
            {"command": "make test"},
            state="failed",
            result=format_shell_result("collected 3 items\n", "make: *** [test] Error 1\n", 2),
            durationMs=65_400,
        ),
        make_tool_row(
            "mcp-github-list-issues",
            "m1",
            "github.list\\_issues",
            {"repo": "crab", "labels": ["bug", "slow"], "limit": 10},
            result='[{"number": 12, "title": "Slow", "open": true}]',
            durationMs=812,
        ),
        make_tool_row(
            "bash",
            "b3",
            "Run `sleep 100`",
            {"command": "sleep 100"},
            state="cut",
            result="interrupted",
            durationMs=2000,
        ),
        make_text_row("t1", MARKDOWN),
        make_tool_row(
            "task",
            "k1",
            "scout — look for other callers",
            {"prompt": "Find **all** callers."},
            state="running",
            task={"name": "scout", "title": "look for other callers", "isActive": True},
            children=[
                make_text_row("k2", "I will grep.", speaker=TASK),
                make_tool_row(
                    "bash",
                    "k3",
                    "Run `grep -rn merge .`",
                    {"command": "grep -rn merge ."},
                    result=format_shell_result("a.py:3\n"),
                    durationMs=12,
                    speaker=TASK,
                ),
                nested,
            ],
        ),
        make_tool_row(
            "task",
            "k4",
            "writer — release notes",
            {"prompt": "Write."},
            result="All written.",
            durationMs=9100,
            task={"name": "writer", "title": "release notes", "isActive": False},
            children=[make_text_row("k5", "All written.", speaker=TASK)],
        ),
        make_text_row(
            "g1", "Sorting twice is the *whole* story. `heapq.merge` does it once.", speaker=OWL
        ),
        make_text_row(
            "g2",
            "I agree with owl.",
            speaker={"id": "c9", "name": "crow", "kind": "guest", "hue": 70},
        ),
        make_picture_row("f1"),
        make_row(
            "file",
            "f2",
            role="agent",
            ref="zip",
            name="report\u202efdp.exe",
            size=1_204_331,
            mimeType="application/pdf",
            image=None,
        ),
        make_row("service", "s1", text="The history was compacted: **Sorting**."),
        make_row("end", "x1", status="failed"),
        make_row("end", "x2", status="cancelled"),
        make_user_row("u2", "And this one?", state="sending", progress=0.4),
        make_user_row("u3", "Never arrived.", state="failed", problem="The relay refused it."),
        make_user_row("u4", "مرحبا بالعالم, how are you?", state="waiting"),
    ]


QUESTION = {
    "id": "ask1",
    "createdAt": NOON,
    "call": "c",
    "questions": [
        {
            "id": "q0",
            "header": "Target",
            "question": "Which `branch` shall I use?",
            "multiSelect": False,
            "allowCustom": True,
            "options": [
                {"label": "main", "description": "Where releases come from"},
                {"label": "next", "description": ""},
            ],
        },
        {
            "id": "q1",
            "header": "Checks",
            "question": "What shall I run?",
            "multiSelect": True,
            "allowCustom": True,
            "options": [
                {"label": "Tests", "description": "Four minutes"},
                {"label": "Lint", "description": ""},
            ],
        },
    ],
}
