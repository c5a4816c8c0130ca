"""Defaults: the decision about a call that no rule matches, by the mode of its conversation.

The tables in the docs are generated from this module.
"""

from enum import IntEnum

import msgspec


class Mode(IntEnum):
    """From the strictest to the most permissive."""

    PLAN = 0
    ASK = 1
    ACCEPT_EDITS = 2
    AUTO = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


# One phrase per mode, for people.
MODE_DESCRIPTIONS = {
    Mode.PLAN: "reads only: what could change something is refused",
    Mode.ASK: "reads and harmless commands run; edits and other commands ask first",
    Mode.ACCEPT_EDITS: "edits of files run too; other commands ask first",
    Mode.AUTO: "everything runs that the agent's file allows",
}
_MODES_BY_LABEL = {mode.label: mode for mode in Mode}
MODE_LABELS = tuple(_MODES_BY_LABEL)

# What each kind of tool does, for people, in the order of the docs.
KIND_DESCRIPTIONS = {
    "read": "reads a file",
    "edit": "changes a file",
    "shell": "runs a command",
    "mcp": "calls a tool of an MCP server",
    "delegate": "starts another agent",
    "memory-read": "recalls notes and archives",
    "memory-write": "writes or forgets notes",
    "sessions": "searches earlier conversations",
    "question": "asks a question",
    "conversation": "loads a skill, names the conversation",
    "other": "is a plugin's tool",
}

ALLOW, ASK, DENY = "allow", "ask", "deny"

# Kind → decision in each mode: plan, ask, accept-edits, auto.
KIND_DECISIONS: dict[str, tuple[str, str, str, str]] = {
    "read": (ALLOW, ALLOW, ALLOW, ALLOW),
    "edit": (DENY, ASK, ALLOW, ALLOW),
    "shell": (DENY, ASK, ASK, ALLOW),  # read-only commands are allowed in every mode
    "mcp": (DENY, ASK, ASK, ALLOW),
    "delegate": (ALLOW, ALLOW, ALLOW, ALLOW),
    "memory-read": (ALLOW, ALLOW, ALLOW, ALLOW),
    "memory-write": (DENY, ALLOW, ALLOW, ALLOW),
    "sessions": (ALLOW, ALLOW, ALLOW, ALLOW),
    "question": (ALLOW, ALLOW, ALLOW, ALLOW),
    "conversation": (ALLOW, ALLOW, ALLOW, ALLOW),
    "other": (DENY, ASK, ASK, ALLOW),
}

# What strangers may not do. Strangers are senders that are neither the owner nor named in the
# agent's file.
STRANGER_DENIALS = {
    "shell": (
        "bash is not for the sender {sender}; name it in allow_senders of [hooks.bash] in the file "
        "of {agent} to change that"
    ),
    "delegate": (
        "the sender {sender} may have {agent} start workers, not other agents; add "
        '"delegate(NAME)" to strangers of [permissions] in its file to change that'
    ),
}
# Further limits for strangers, for explanations and docs.
STRANGER_LIMITS = {
    "read": "only files in a folder of the sender's own",
    "edit": "only files in a folder of the sender's own",
    "memory-read": "only the sender's own notes and archives",
    "memory-write": "only the sender's own notes",
    "sessions": "only the sender's own conversations",
}


class ToolInScope(msgspec.Struct, frozen=True):
    """A tool, and whether the agent's file offers it."""

    name: str
    names: tuple[str, ...]
    kind: str
    is_offered: bool


def decide_by_default(kind: str, mode: Mode) -> tuple[str, str]:
    """Return the decision and its reason."""
    decision = KIND_DECISIONS.get(kind, KIND_DECISIONS["other"])[mode]
    description = KIND_DESCRIPTIONS.get(kind, KIND_DESCRIPTIONS["other"])
    match decision:
        case "allow":
            return decision, f"allowed in mode {mode.label}"
        case "ask":
            return decision, f"mode {mode.label} asks before it {description}"
    return decision, f"mode {mode.label} refuses a call that {description}"


def parse_mode(word: str) -> Mode:
    """Raises ValueError with a message for an unknown mode."""
    try:
        return _MODES_BY_LABEL[word]
    except KeyError:
        raise ValueError(
            f"there is no mode {word[:40]!r}; the modes are {', '.join(MODE_LABELS)}"
        ) from None
