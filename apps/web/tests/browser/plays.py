"""Plays: what is said to the agents on the stage, and what they then do.

A model that has no script for a text has one here, so that what people say reads like what people
say, and answers can have lines.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.model_server import Call, Directive, ModelServer, Request, Say, Script, Status

Steps = tuple[Script, ...]


@dataclass(eq=False)
class Actor(ModelServer):
    """A model that knows plays besides scripts."""

    plays: dict[str, Steps] = field(default_factory=dict)

    def script(self, request: Request) -> Script:
        used = 0
        for message in reversed(request.messages):
            used += bool(message.role == "assistant" and message.tool_calls)
            if message.role == "user" and not message.has_images:
                known = max((w for w in self.plays if w in message.text), key=len, default="")
                if known and used < len(self.plays[known]):
                    return self.plays[known][used]
                break
        return super().script(request)


def say(text: str) -> Say:
    return Say(pieces(text))


def think(text: str) -> Say:
    return Say(pieces(text), "reasoning_content")


def slowly(text: str) -> Script:
    """With a pause after each word, which whoever runs the stage ends."""
    script: list[Directive] = []
    for piece in pieces(text):
        script += [Say((piece,)), "wait"]
    return tuple(script)


def call(name: str, **arguments: Any) -> Call:
    return Call(name, json.dumps(arguments))


def pieces(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\S+\s*|\s+", text))


WHERE = "Where do we retry requests, and can it pile up?"
LONGER = "Make it wait twice as long each time, with a bound."
OPINION = "What do you make of that change?"
SURVEY = "Look through the services for settings nobody reads."
LOGS = "Go through last week's logs and tell me what woke people up."
DEPLOY = "Put the new version on the staging machine."
PICTURE = "Here is the sketch. Can you make it small enough for the header?"
BROKEN = "Summarise the whole archive in one go."
STOPPED = "Count every word in the archive."
FREE = "Tell me what you can do here."

# The file that agents on the stage work on.
RETRY = '''"""Asks again, when nobody answered."""

import time

TRIES = 5
WAIT = 0.5


def ask(send, request):
    for attempt in range(TRIES):
        try:
            return send(request)
        except ConnectionError:
            time.sleep(WAIT)
    raise TimeoutError("nobody answered")
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

SURVEYED = """Nobody reads these:

- **mail**: `MAIL_BATCH`, since the queue sends one by one
- **search**: `SHARD_HINT`, left from the old index

Everything in *billing* is read."""

PLAYS: dict[str, Steps] = {
    WHERE: (
        (
            think("They ask about retries. The word is in few files; look there first."),
            say("Let me look."),
            call("bash", command="grep -rn 'sleep\\|retry' --include=*.py ."),
        ),
        (say(FOUND),),
    ),
    LONGER: (
        (call("read", path="retry.py"),),
        (
            call("edit", path="retry.py", old_string=OLD, new_string=NEW),
            call(
                "edit",
                path="retry.py",
                old_string="WAIT = 0.5\n",
                new_string="WAIT = 0.5\nLONGEST = 8.0\n",
            ),
        ),
        (call("bash", command="echo 'E   assert 0.5 == 1.0'; echo '1 failed, 11 passed'; exit 1"),),
        (say("One test counted half seconds. I mend it."), call("bash", command="echo 12 passed")),
        (say(DONE),),
    ),
    OPINION: (
        (say("Sound. I would add a little **jitter**: `random.uniform(0.5, 1.0)` is enough."),),
    ),
    SURVEY: (
        (
            say("I have three colleagues look at one service each."),
            call(
                "delegate",
                tasks=[
                    {"message": "Which settings of mail does nobody read?", "agent": "owl"},
                    {"message": "Which settings of search does nobody read?"},
                    {"message": "Which settings of billing does nobody read?"},
                ],
            ),
        ),
        (say(SURVEYED),),
    ),
    "Which settings of mail does nobody read?": (
        (call("bash", command="printf 'MAIL_BATCH  0 uses\\nMAIL_FROM   3 uses\\n'"),),
        (say("`MAIL_BATCH` is read nowhere."),),
    ),
    "Which settings of search does nobody read?": (
        (
            call(
                "delegate",
                tasks=[{"message": "When was SHARD_HINT last read?", "agent": "owl"}],
            ),
        ),
        (say("`SHARD_HINT`, since the index was changed."),),
    ),
    "When was SHARD_HINT last read?": ((say("In March, by the old index."),),),
    "Which settings of billing does nobody read?": ((say("All of them are read."),),),
    LOGS: (
        (
            think("Seven files. Count the pages first, then have each night looked at."),
            say("Seven nights, I begin with the worst two."),
            call("bash", command="printf 'mon 0\\ntue 4\\nwed 1\\nthu 9\\n'"),
        ),
        (
            call(
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
            say("Four pages, all from the mail queue."),
            call("bash", command="sleep 86400", timeout=3600),
        ),
    ),
    "What happened on Thursday night?": (
        (call("bash", command="printf '03:12 disk full\\n03:14 mail: no space\\n'"),),
        (say("The disk was full from 03:12 on."),),
    ),
    DEPLOY: (
        (
            say("Two things before I do."),
            call(
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
        (say("It is on the staging machine."),),
    ),
    PICTURE: (
        (call("bash", command="echo 'sketch.png: 960 x 540'"),),
        (call("send_file", path="header.png"),),
        (say("`header.png` is 480 pixels wide and a third of the size."),),
    ),
    BROKEN: ((Status(400, "the prompt is 1,204,331 tokens long, this model takes 200,000"),),),
    STOPPED: (
        (say("I start with the oldest."), call("bash", command="sleep 86400", timeout=3600)),
    ),
    FREE: (
        slowly(
            "I read and write files in this folder, run commands, ask colleagues, and ask **you** "
            "when I should not decide alone.\n\n"
            "```python\nprint('for example')\n```\n\n"
            "What you say on the phone is said in the terminal too, and the other way round."
        ),
    ),
}
