"""Scripted dialogues: messages to the agents of the dev server, and what the agents then do.

A model with these dialogues answers realistic texts, also of several lines.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.model_server import (
    CallDirective,
    ChatRequest,
    Directive,
    ModelServer,
    SayDirective,
    Script,
    StatusDirective,
)

DialogueSteps = tuple[Script, ...]


@dataclass(eq=False)
class DialogueModel(ModelServer):
    """A model server that knows these dialogues besides scripts."""

    dialogues: dict[str, DialogueSteps] = field(default_factory=dict)

    def script(self, request: ChatRequest) -> Script:
        used = 0
        for message in reversed(request.messages):
            used += bool(message.role == "assistant" and message.tool_calls)
            if message.role == "user" and not message.has_images:
                known = max((w for w in self.dialogues if w in message.text), key=len, default="")
                if known and used < len(self.dialogues[known]):
                    return self.dialogues[known][used]
                break
        return super().script(request)


def say_text(text: str) -> SayDirective:
    return SayDirective(split_words(text))


def think_text(text: str) -> SayDirective:
    return SayDirective(split_words(text), "reasoning_content")


def say_slowly(text: str) -> Script:
    """Pause after each word, until the dev server's owner releases the model."""
    script: list[Directive] = []
    for piece in split_words(text):
        script += [SayDirective((piece,)), "wait"]
    return tuple(script)


def call_tool(name: str, **arguments: Any) -> CallDirective:
    return CallDirective(name, json.dumps(arguments))


def split_words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\S+\s*|\s+", text))


WHERE = "Where do we retry requests, and can it pile up?"
LONGER = "Make it wait twice as long each time, with a bound."
OPINION = "What do you make of that change?"
SURVEY = "Look through the services for unused settings."
LOGS = "Go through last week's logs and tell me what woke people up."
DEPLOY = "Put the new version on the staging machine."
PICTURE = "Here is the sketch. Can you make it small enough for the header?"
BROKEN = "Summarise the whole archive in one go."
STOPPED = "Count every word in the archive."
FREE = "Tell me what you can do here."

# The file that the agents work on.
RETRY = '''"""Asks again when there is no answer."""

import time

TRIES = 5
WAIT = 0.5


def ask(send, request):
    for attempt in range(TRIES):
        try:
            return send(request)
        except ConnectionError:
            time.sleep(WAIT)
    raise TimeoutError("no answer")
'''
OLD = "            time.sleep(WAIT)\n"
NEW = "            time.sleep(min(WAIT * 2**attempt, LONGEST))\n"

FOUND = """There is **one** place, `retry.py`, and yes, it can pile up.

### What happens

1. Every client waits the same half second.
2. After an outage they all come back *at once*.
3. The service is down again, and it starts over.

```python
for attempt in range(TRIES):
    try:
        return send(request)
    except ConnectionError:
        time.sleep(WAIT)  # the same for everybody
```

| clients | requests in the first second |
|--------:|-----------------------------:|
|      10 |                           20 |
|   1,000 |                        2,000 |

> A wait that grows, and differs between clients, spreads them out.

See the [notes on back-off](https://example.org/back-off) for what others do.
"""

DONE = """Done. The wait doubles with each attempt and stops growing at eight seconds.

- `retry.py` has the bound in `LONGEST`
- the test that counted half seconds now counts doubling ones
"""

SURVEYED = """These are unused:

- **mail**: `MAIL_BATCH`, since the queue sends one by one
- **search**: `SHARD_HINT`, left from the old index

Everything in *billing* is read."""

DIALOGUES: dict[str, DialogueSteps] = {
    WHERE: (
        (
            think_text("They ask about retries. The word is in few files; look there first."),
            say_text("Let me look."),
            call_tool("bash", command="grep -rn 'sleep\\|retry' --include=*.py ."),
        ),
        (say_text(FOUND),),
    ),
    LONGER: (
        (call_tool("read", path="retry.py"),),
        (
            call_tool("edit", path="retry.py", old_string=OLD, new_string=NEW),
            call_tool(
                "edit",
                path="retry.py",
                old_string="WAIT = 0.5\n",
                new_string="WAIT = 0.5\nLONGEST = 8.0\n",
            ),
        ),
        (
            call_tool(
                "bash", command="echo 'E   assert 0.5 == 1.0'; echo '1 failed, 11 passed'; exit 1"
            ),
        ),
        (
            say_text("One test counted half seconds. I mend it."),
            call_tool("bash", command="echo 12 passed"),
        ),
        (say_text(DONE),),
    ),
    OPINION: (
        (
            say_text(
                "Sound. I would add a little **jitter**: `random.uniform(0.5, 1.0)` is enough."
            ),
        ),
    ),
    SURVEY: (
        (
            say_text("I have three colleagues look at one service each."),
            call_tool(
                "delegate",
                tasks=[
                    {"message": "Which settings of mail are unused?", "agent": "owl"},
                    {"message": "Which settings of search are unused?"},
                    {"message": "Which settings of billing are unused?"},
                ],
            ),
        ),
        (say_text(SURVEYED),),
    ),
    "Which settings of mail are unused?": (
        (call_tool("bash", command="printf 'MAIL_BATCH  0 uses\\nMAIL_FROM   3 uses\\n'"),),
        (say_text("`MAIL_BATCH` is read nowhere."),),
    ),
    "Which settings of search are unused?": (
        (
            call_tool(
                "delegate",
                tasks=[{"message": "When was SHARD_HINT last read?", "agent": "owl"}],
            ),
        ),
        (say_text("`SHARD_HINT`, since the index was changed."),),
    ),
    "When was SHARD_HINT last read?": ((say_text("In March, by the old index."),),),
    "Which settings of billing are unused?": ((say_text("All of them are read."),),),
    LOGS: (
        (
            think_text("Seven files. Count the pages first, then have each night looked at."),
            say_text("Seven nights, I begin with the worst two."),
            call_tool("bash", command="printf 'mon 0\\ntue 4\\nwed 1\\nthu 9\\n'"),
        ),
        (
            call_tool(
                "delegate",
                tasks=[
                    {"message": "What happened on Tuesday night?", "agent": "owl"},
                    {"message": "What happened on Thursday night?"},
                ],
            ),
        ),
    ),
    "What happened on Tuesday night?": (
        (
            say_text("Four pages, all from the mail queue."),
            call_tool("bash", command="sleep 86400", timeout=3600),
        ),
    ),
    "What happened on Thursday night?": (
        (call_tool("bash", command="printf '03:12 disk full\\n03:14 mail: no space\\n'"),),
        (say_text("The disk was full from 03:12 on."),),
    ),
    DEPLOY: (
        (
            say_text("Two things before I do."),
            call_tool(
                "ask_user",
                questions=[
                    {
                        "header": "Version",
                        "question": "Which version do you mean?",
                        "options": [
                            {"label": "2.4.0", "description": "the release of yesterday"},
                            {"label": "main", "description": "with the new retries"},
                        ],
                    },
                    {
                        "header": "Afterwards",
                        "question": "What shall I do when it is there?",
                        "options": ["Run the smoke tests", "Clear the cache", "Tell the channel"],
                        "multi_select": True,
                    },
                ],
            ),
        ),
        (say_text("It is on the staging machine."),),
    ),
    PICTURE: (
        (call_tool("bash", command="echo 'sketch.png: 960 x 540'"),),
        (call_tool("send_file", path="header.png"),),
        (say_text("`header.png` is 480 pixels wide and a third of the size."),),
    ),
    BROKEN: (
        (StatusDirective(400, "the prompt is 1,204,331 tokens long, this model takes 200,000"),),
    ),
    STOPPED: (
        (
            say_text("I start with the oldest."),
            call_tool("bash", command="sleep 86400", timeout=3600),
        ),
    ),
    FREE: (
        say_slowly(
            "I read and write files in this folder, run commands, ask colleagues, and ask **you** "
            "when I should not decide alone.\n\n"
            "```python\nprint('for example')\n```\n\n"
            "What you say on the phone is said in the terminal too, and the other way round."
        ),
    ),
}
