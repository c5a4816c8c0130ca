"""Summaries of tool calls: a short label for each call, and the readable part of its output.

Knows the daemon's own tools by name, and treats all others alike.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crabtalk.service.command_line import to_one_line

# The argument that summarises a call, by the tool's name.
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
MAX_PARSED = 1 << 20  # characters; longer JSON is not parsed
# Escapes of programs that print in colour.
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


@dataclass
class ChatToolCall:
    """A tool call, running or ended.

    `seconds` is None until it has ended; `is_error` is None also if it is not known.
    """

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
        """The arguments; empty if they are no JSON object."""
        arguments = parse_json(self.arguments)
        return arguments if isinstance(arguments, dict) else {}

    @cached_property
    def summary(self) -> str:
        if self.is_early:
            return "…"
        if self.name == "delegate" and (tasks := self.tasks):
            return tasks[0][1] if len(tasks) == 1 else f"{len(tasks)} tasks"
        if self.name == "ask_user":
            questions = self.parsed_arguments.get("questions")
            headers = (
                [get_text(q, "header") for q in questions] if isinstance(questions, list) else []
            )
            return to_one_line(", ".join(headers), MAX_LABEL)
        if self.name in SUMMARY_ARGUMENTS and isinstance(
            argument := self.parsed_arguments.get(SUMMARY_ARGUMENTS[self.name]), str
        ):
            first, _, rest = argument.strip().partition("\n")
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
        """Agent and message of each task of `delegate`."""
        tasks = self.parsed_arguments.get("tasks")
        if self.name != "delegate" or not isinstance(tasks, list):
            return []
        return [
            (get_text(task, "agent") or "worker", to_one_line(get_text(task, "message"), MAX_LABEL))
            for task in tasks
        ]

    @cached_property
    def questions(self) -> list[str]:
        """The questions of `ask_user`."""
        questions = self.parsed_arguments.get("questions")
        if self.name != "ask_user" or not isinstance(questions, list):
            return []
        return [get_text(question, "question") for question in questions]

    def pair_answers(self) -> list[tuple[str, str]]:
        """Pair each question of `ask_user` with its answer."""
        replies = parse_json(self.output)
        if not isinstance(replies, dict):
            return [(" / ".join(self.questions), self.output)]
        return [(question, str(replies.get(question, ""))) for question in self.questions]

    def parse_task_results(self) -> list[tuple[bool | None, str]] | None:
        """Return whether each task of `delegate` failed, and its error.

        A task that goes on in the background has None instead. Returns None if the output cannot be
        parsed.
        """
        results = parse_json(self.output)
        if not isinstance(results, list) or len(results) != len(self.tasks):
            return None
        return [
            (None, "")
            if isinstance(result, dict) and "task_id" in result
            else (bool(get_text(result, "error")), get_text(result, "error"))
            for result in results
        ]

    @cached_property
    def display_output(self) -> str:
        """The output for a person: for a command what it printed."""
        return strip_colours(self._extract_output())

    def _extract_output(self) -> str:
        if self.name != "bash":
            return self.output
        before, brace, _ = self.output.partition("{")
        result = parse_json(self.output[len(before) :]) if brace else None
        if not isinstance(result, dict) or "exit_code" not in result:
            return self.output
        out, err = get_text(result, "stdout").rstrip(), get_text(result, "stderr").rstrip()
        code = result["exit_code"]
        status = f"exit status {code}" if code and not self.is_error else ""
        # For a failed command stderr comes first: it explains the failure.
        parts = (before.strip(), status, err, out) if code else (out or err,)
        return "\n".join(part for part in parts if part)


def strip_colours(text: str) -> str:
    """Remove colour escapes. Others stay and are made visible later."""
    return COLOUR.sub("", text)


def parse_json(text: str) -> Any:
    if len(text) > MAX_PARSED or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def get_text(value: Any, name: str) -> str:
    text = value.get(name) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


def shorten_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return to_one_line(text[:MAX_LABEL], 60)
