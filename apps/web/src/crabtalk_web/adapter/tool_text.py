"""What people see of a tool call: its name, title, description and arguments.

Text from a model or an MCP server is never trusted to be short, on one line, or free of markup.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec

from crabtalk_web.stream import EnvelopeError, clean_json_value
from crabtalk_web.stream.json_values import parse_json

MAX_TITLE = 80
MAX_DESCRIPTION = 500
MAX_NAME = 64
# In bytes: for the output of a tool, for all arguments of a call, and for a single text among them
# if together they are too large.
MAX_RESULT = 16_384
MAX_ARGUMENTS = 65_536
MAX_ARGUMENT = 4096
MARKUP = re.compile(r"([\\`*_\[\]<>~|])")

# The title of a call: a phrase, and the argument that follows it.
PHRASES: dict[str, tuple[str, str]] = {
    "bash": ("Run", "command"),
    "read": ("Read", "path"),
    "edit": ("Edit", "path"),
    "skill": ("Skill", "name"),
    "remember": ("Remember", "name"),
    "forget": ("Forget", "name"),
    "recall": ("Recall", "query"),
    "search_sessions": ("Search sessions for", "query"),
    "search": ("Search for", "query"),
    "fetch": ("Fetch", "url"),
    "set_title": ("Title", "title"),
}
# Tools that certain readers draw specially, under the names by which they know them.
COMPAT_NAMES = {
    "bash": "Bash",
    "read": "Read",
    "edit": "Edit",
    "task": "Agent",
    "ask_user": "AskUserQuestion",
    "skill": "Skill",
}
MCP_TOOL_NAME = re.compile(r"([^_].*?)__(.+)", re.DOTALL)


def format_tool_name(name: str) -> str:
    """Return lower-case words joined by hyphens."""
    if server := MCP_TOOL_NAME.fullmatch(name):
        name = f"mcp-{server[1]}-{server[2]}"
    letters = unicodedata.normalize("NFKD", name[: 4 * MAX_NAME]).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", letters.lower()).strip("-")
    return words[:MAX_NAME].rstrip("-") or "tool"


def format_compat_name(name: str) -> str:
    if MCP_TOOL_NAME.fullmatch(name):
        name = f"mcp__{name}"
    return COMPAT_NAMES.get(name) or to_one_line(name)[:MAX_NAME] or "tool"


def add_compat_arguments(name: str, args: dict[str, Any]) -> dict[str, Any]:
    """Add the keys that those readers look for."""
    if name in ("read", "edit") and "path" in args:
        return {**args, "file_path": args["path"]}
    if name == "ask_user" and isinstance(args.get("questions"), list):
        return {
            **args,
            "questions": [convert_compat_question(question) for question in args["questions"]],
        }
    return args


def convert_compat_question(question: Any) -> Any:
    if not isinstance(question, dict):
        return question
    options = question.get("options")
    options = options if isinstance(options, list) else []
    return {
        "question": question.get("question", ""),
        "header": question.get("header", ""),
        "options": [{"label": o, "description": ""} if isinstance(o, str) else o for o in options],
        "multiSelect": bool(question.get("multiSelect", question.get("multi_select", False))),
    }


def build_title(name: str, args: dict[str, Any]) -> str:
    return build_phrase(name, args, MAX_TITLE)


def build_description(name: str, args: dict[str, Any]) -> str:
    """Return a longer title; for an unknown tool, with all its arguments."""
    if name == "ask_user":
        return first_question_text(args, MAX_DESCRIPTION, ("question", "header"))
    if name in PHRASES and isinstance(args.get(PHRASES[name][1]), str):
        return build_phrase(name, args, MAX_DESCRIPTION)
    encoded_args = msgspec.json.encode(args).decode() if args else ""
    short = build_phrase(name, args, MAX_DESCRIPTION // 2)
    return (
        f"{short} with {format_inline_code(encoded_args, MAX_DESCRIPTION - len(short) - 6)}"
        if encoded_args
        else short
    )


def build_phrase(name: str, args: dict[str, Any], room: int) -> str:
    if name == "ask_user":
        return first_question_text(args, room, ("header", "question"))
    if name in PHRASES:
        verb, key = PHRASES[name]
        value = args.get(key)
        if isinstance(value, str) and to_one_line(value):
            return f"{verb} {format_inline_code(value, room - len(verb) - 1)}"
        return verb
    if server := MCP_TOOL_NAME.fullmatch(name):
        return escape_markdown(f"{server[1]}.{server[2]}", room)
    return f"Call {format_inline_code(name, room - 5)}" if to_one_line(name) else "Call a tool"


def first_question_text(args: dict[str, Any], room: int, keys: Iterable[str]) -> str:
    """Return the text of the first question, under the first of `keys` that has one."""
    questions = args.get("questions")
    first = questions[0] if isinstance(questions, list) and questions else None
    for key in keys:
        value = first.get(key) if isinstance(first, dict) else None
        if isinstance(value, str) and to_one_line(value):
            return escape_markdown(value, room)
    return "Question"


def to_one_line(text: str) -> str:
    """Return the text on one line, without invisible characters."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 8 * MAX_DESCRIPTION])
    return " ".join(shown.split())


def shorten_text(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…"


def escape_markdown(text: str, room: int) -> str:
    """Return the text on one line, escaped so that it renders literally."""
    shown = shorten_text(to_one_line(text), room) or "…"
    escaped = MARKUP.sub(r"\\\1", shown)
    return escaped if len(escaped) <= room else shorten_text(MARKUP.sub("", shown), room) or "…"


def format_inline_code(text: str, room: int) -> str:
    """Return the text on one line, as inline code."""
    shown = to_one_line(text) or "…"
    longest = max(map(len, re.findall("`+", shown)), default=0)
    if longest > 3:
        shown, longest = shown.replace("`", "'"), 0
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    inner = shorten_text(shown, room - 2 * len(fence) - 2 * len(pad))
    return f"{fence}{pad}{inner}{pad}{fence}"


def format_code_block(result: str) -> str:
    """Return the output as a code block, whatever it contains."""
    longest = max(map(len, re.findall("`{3,}", result)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{result.strip(chr(10))}\n{fence}"


def parse_arguments(text: str) -> dict[str, Any]:
    """Return an object, whatever the model wrote."""
    if not text.strip():
        return {}
    try:
        value = clean_json_value(parse_json(text))
    except EnvelopeError:
        value = None
    return (
        limit_arguments(value)
        if isinstance(value, dict)
        else {"raw": excerpt_text(text, MAX_RESULT)}
    )


def limit_arguments(args: dict[str, Any]) -> dict[str, Any]:
    """Shorten the arguments until they fit into an envelope."""
    if measure_json(args) <= MAX_ARGUMENTS:
        return args
    short: dict[str, Any] = shorten_values(args)
    if measure_json(short) <= MAX_ARGUMENTS:
        return short
    return {"raw": excerpt_text(msgspec.json.encode(args).decode(), MAX_RESULT)}


def measure_json(value: Any) -> int:
    return len(msgspec.json.encode(value))


def shorten_values(value: Any) -> Any:
    if isinstance(value, str):
        return excerpt_text(value, MAX_ARGUMENT)
    if isinstance(value, dict):
        return {key: shorten_values(entry) for key, entry in value.items()}
    return [shorten_values(entry) for entry in value] if isinstance(value, list) else value


def excerpt_text(text: str, most: int) -> str:
    """Return the beginning and the end of the text, in at most `most` bytes."""
    data = text.encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    note = f"\n… {len(data) - most} bytes and more left out …\n"
    half = (most - len(note.encode())) // 2
    return data[:half].decode(errors="ignore") + note + data[-half:].decode(errors="ignore")
