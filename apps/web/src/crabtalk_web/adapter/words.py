"""Words about tools: what people see of a call, its name, title, description and arguments.

Nothing a model or a server wrote is trusted to be short, on one line, or free of markup.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec

from crabtalk_web.stream import EnvelopeError, plain
from crabtalk_web.stream.plain import parsed

TITLE = 80
DESCRIPTION = 500
NAME = 64
# Bytes: of what a tool gave back, of all arguments of a call, of one text among them if that is
# too much.
RESULT = 16_384
ARGUMENTS = 65_536
ARGUMENT = 4096
MARKUP = re.compile(r"([\\`*_\[\]<>~|])")

# How a call reads: a phrase, and the argument that goes after it.
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
# Tools that certain readers draw in a way of their own, by the names they know them by.
COMPAT = {
    "bash": "Bash",
    "read": "Read",
    "edit": "Edit",
    "task": "Agent",
    "ask_user": "AskUserQuestion",
    "skill": "Skill",
}
SERVER = re.compile(r"([^_].*?)__(.+)", re.DOTALL)


def tool_name(name: str) -> str:
    """Words in lower case, joined by hyphens."""
    if server := SERVER.fullmatch(name):
        name = f"mcp-{server[1]}-{server[2]}"
    letters = unicodedata.normalize("NFKD", name[: 4 * NAME]).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", letters.lower()).strip("-")
    return words[:NAME].rstrip("-") or "tool"


def compat_name(name: str) -> str:
    if SERVER.fullmatch(name):
        name = f"mcp__{name}"
    return COMPAT.get(name) or line(name)[:NAME] or "tool"


def compat_arguments(name: str, args: dict[str, Any]) -> dict[str, Any]:
    """With the keys beside ours that those readers look for."""
    if name in ("read", "edit") and "path" in args:
        return {**args, "file_path": args["path"]}
    if name == "ask_user" and isinstance(args.get("questions"), list):
        return {**args, "questions": [compat_question(one) for one in args["questions"]]}
    return args


def compat_question(question: Any) -> Any:
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


def title(name: str, args: dict[str, Any]) -> str:
    return phrase(name, args, TITLE)


def description(name: str, args: dict[str, Any]) -> str:
    """More of the same, and for a tool nobody knows here all of its arguments."""
    if name == "ask_user":
        return asking(args, DESCRIPTION, ("question", "header"))
    if name in PHRASES and isinstance(args.get(PHRASES[name][1]), str):
        return phrase(name, args, DESCRIPTION)
    given = msgspec.json.encode(args).decode() if args else ""
    short = phrase(name, args, DESCRIPTION // 2)
    return f"{short} with {code(given, DESCRIPTION - len(short) - 6)}" if given else short


def phrase(name: str, args: dict[str, Any], room: int) -> str:
    if name == "ask_user":
        return asking(args, room, ("header", "question"))
    if name in PHRASES:
        verb, key = PHRASES[name]
        value = args.get(key)
        if isinstance(value, str) and line(value):
            return f"{verb} {code(value, room - len(verb) - 1)}"
        return verb
    if server := SERVER.fullmatch(name):
        return said(f"{server[1]}.{server[2]}", room)
    return f"Call {code(name, room - 5)}" if line(name) else "Call a tool"


def asking(args: dict[str, Any], room: int, keys: Iterable[str]) -> str:
    """The first question: what it has of `keys`, the first of them if it can be."""
    questions = args.get("questions")
    first = questions[0] if isinstance(questions, list) and questions else None
    for key in keys:
        word = first.get(key) if isinstance(first, dict) else None
        if isinstance(word, str) and line(word):
            return said(word, room)
    return "Question"


def line(text: str) -> str:
    """On one line, with nothing in it that cannot be seen."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 8 * DESCRIPTION])
    return " ".join(shown.split())


def shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…"


def said(text: str, room: int) -> str:
    """On one line, and read as it is written."""
    shown = shortened(line(text), room) or "…"
    escaped = MARKUP.sub(r"\\\1", shown)
    return escaped if len(escaped) <= room else shortened(MARKUP.sub("", shown), room) or "…"


def code(text: str, room: int) -> str:
    """On one line, as code."""
    shown = line(text) or "…"
    longest = max(map(len, re.findall("`+", shown)), default=0)
    if longest > 3:
        shown, longest = shown.replace("`", "'"), 0
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    inner = shortened(shown, room - 2 * len(fence) - 2 * len(pad))
    return f"{fence}{pad}{inner}{pad}{fence}"


def output(result: str) -> str:
    """What a tool gave back, as a block of code whatever is in it."""
    longest = max(map(len, re.findall("`{3,}", result)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{result.strip(chr(10))}\n{fence}"


def arguments(text: str) -> dict[str, Any]:
    """An object, whatever the model wrote."""
    if not text.strip():
        return {}
    try:
        value = plain(parsed(text))
    except EnvelopeError:
        value = None
    return bounded(value) if isinstance(value, dict) else {"raw": excerpt(text, RESULT)}


def bounded(args: dict[str, Any]) -> dict[str, Any]:
    """Of a size that travels."""
    if size(args) <= ARGUMENTS:
        return args
    short: dict[str, Any] = cut(args)
    if size(short) <= ARGUMENTS:
        return short
    return {"raw": excerpt(msgspec.json.encode(args).decode(), RESULT)}


def size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def cut(value: Any) -> Any:
    if isinstance(value, str):
        return excerpt(value, ARGUMENT)
    if isinstance(value, dict):
        return {key: cut(entry) for key, entry in value.items()}
    return [cut(entry) for entry in value] if isinstance(value, list) else value


def excerpt(text: str, most: int) -> str:
    """Its beginning and its end, in so many bytes."""
    data = text.encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    note = f"\n… {len(data) - most} bytes and more left out …\n"
    half = (most - len(note.encode())) // 2
    return data[:half].decode(errors="ignore") + note + data[-half:].decode(errors="ignore")
