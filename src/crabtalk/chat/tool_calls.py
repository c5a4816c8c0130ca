"""Calls: what agents do with tools, in a few words: a label for each call, and of what came back
the text worth reading. Knows the daemon's own tools by name, and treats all others alike.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crabtalk.service.command_line import to_one_line

# What a call is about: one of its arguments, by the tool's name.
SUMMARY_ARGUMENTS: Mapping[str, str] = {
    "bash": "command",
    "edit": "path",
    "fetch": "url",
    "forget": "name",
    "read": "path",
    "recall": "query",
    "remember": "name",
    "search": "query",
    "search_sessions": "query",
    "set_title": "title",
    "skill": "name",
}
MAX_LABEL = 200  # characters
MAX_PARSED = 1 << 20  # characters that are looked into
# What programs put around their words when they are made to print in colour.
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


@dataclass
class ChatToolCall:
    """A tool call, while it runs and after it. `seconds` is None until it has ended, `is_error`
    also where it is not known."""

    id: str
    name: str
    arguments: str = ""
    started: float = 0.0
    seconds: float | None = None
    output: str = ""
    is_error: bool | None = None
    progress: str = ""
    is_early: bool = False  # the model is still writing it

    def finish(self, output: str, seconds: float | None, is_error: bool | None) -> None:
        self.output, self.seconds, self.is_error = output, seconds, is_error

    @cached_property
    def parsed_arguments(self) -> dict[str, Any]:
        """Its arguments; none if they are no JSON object."""
        found = parse_json(self.arguments)
        return found if isinstance(found, dict) else {}

    @cached_property
    def summary(self) -> str:
        if self.is_early:
            return "…"
        if self.name == "delegate" and (tasks := self.tasks):
            return tasks[0][1] if len(tasks) == 1 else f"{len(tasks)} tasks"
        if self.name == "ask_user":
            asked = self.parsed_arguments.get("questions")
            heads = [get_text(q, "header") for q in asked] if isinstance(asked, list) else []
            return to_one_line(", ".join(heads), MAX_LABEL)
        if self.name in SUMMARY_ARGUMENTS and isinstance(
            found := self.parsed_arguments.get(SUMMARY_ARGUMENTS[self.name]), str
        ):
            first, _, rest = found.strip().partition("\n")
            return to_one_line(first, MAX_LABEL) + (" …" if rest else "")
        if self.parsed_arguments:
            return to_one_line(
                ", ".join(
                    f"{name}={shorten_value(v)}" for name, v in self.parsed_arguments.items()
                ),
                MAX_LABEL,
            )
        return (
            to_one_line(self.arguments[:MAX_LABEL])
            if self.arguments.strip() not in ("", "{}")
            else ""
        )

    @cached_property
    def tasks(self) -> list[tuple[str, str]]:
        """Of `delegate`: who does what."""
        found = self.parsed_arguments.get("tasks")
        if self.name != "delegate" or not isinstance(found, list):
            return []
        return [
            (get_text(task, "agent") or "worker", to_one_line(get_text(task, "message"), MAX_LABEL))
            for task in found
        ]

    @cached_property
    def questions(self) -> list[str]:
        """Of `ask_user`."""
        found = self.parsed_arguments.get("questions")
        if self.name != "ask_user" or not isinstance(found, list):
            return []
        return [get_text(question, "question") for question in found]

    def pair_answers(self) -> list[tuple[str, str]]:
        """Of `ask_user`: each question with what was said to it."""
        replies = parse_json(self.output)
        if not isinstance(replies, dict):
            return [(" / ".join(self.questions), self.output)]
        return [(question, str(replies.get(question, ""))) for question in self.questions]

    def parse_task_results(self) -> list[tuple[bool | None, str]] | None:
        """Of `delegate`, for each task: whether it failed, None if it goes on in the background,
        and what was said. None if that cannot be read."""
        found = parse_json(self.output)
        if not isinstance(found, list) or len(found) != len(self.tasks):
            return None
        return [
            (None, "")
            if isinstance(result, dict) and "task_id" in result
            else (bool(get_text(result, "error")), get_text(result, "error"))
            for result in found
        ]

    @cached_property
    def display_output(self) -> str:
        """What it gave back, for a person: of a command what it printed."""
        return strip_colours(self._extract_output())

    def _extract_output(self) -> str:
        if self.name != "bash":
            return self.output
        before, brace, _ = self.output.partition("{")
        found = parse_json(self.output[len(before) :]) if brace else None
        if not isinstance(found, dict) or "exit_code" not in found:
            return self.output
        out, err = get_text(found, "stdout").rstrip(), get_text(found, "stderr").rstrip()
        code = found["exit_code"]
        status = f"exit status {code}" if code and not self.is_error else ""
        # Of one that went wrong, what it complained about says most.
        parts = (before.strip(), status, err, out) if code else (out or err,)
        return "\n".join(part for part in parts if part)


def strip_colours(text: str) -> str:
    """Without the colours of another program; every other escape stays, and can be seen."""
    return COLOUR.sub("", text)


def parse_json(text: str) -> Any:
    if len(text) > MAX_PARSED or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def get_text(value: Any, name: str) -> str:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def shorten_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return to_one_line(text[:MAX_LABEL], 60)
