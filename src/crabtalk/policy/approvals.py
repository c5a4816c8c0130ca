"""Approvals: the question a person gets about a call, and what the answer allows.

The question shows the whole call, with invisible characters escaped. An answer is valid only for
exactly the bytes that were shown: the digest in the question is compared again before the call
runs.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from crabtalk.invisible_characters import is_invisible
from crabtalk.runtime import ApprovalRequest, AskOption, AskQuestion, ToolDispatch

from .rules import PermissionRequest

ALLOW, DENY, ALWAYS = "Allow", "Deny", "Always"
# Words that people type, and labels that clients of earlier versions send.
YES_WORDS = {"allow", "yes", "y", "ok"}
PATTERN_CHARACTERS = frozenset("*?[")
ALWAYS_WORDS = {"always", "always here"}


class ApprovalAnswer(msgspec.Struct, frozen=True):
    is_allowed: bool
    is_always: bool = False


class ApprovalQuestion(msgspec.Struct, frozen=True):
    """A question, and the rules that the answer "Always" would store."""

    question: AskQuestion
    rules: tuple[str, ...]

    @property
    def digest(self) -> str:
        return self.question.approval.digest if self.question.approval is not None else ""


def build_question(request: PermissionRequest, reason: str, *, for_owner: bool) -> ApprovalQuestion:
    call = request.call
    rules = suggest_rules(request)
    approval = ApprovalRequest(
        agent=call.agent,
        tool=call.name,
        call=describe_call(request),
        cwd=escape_invisible(str(call.cwd)),
        env=list_command_variables(request),
        always=describe_rules(rules),
        digest=compute_digest(call),
        requested_by=call.run.origin,
        for_owner=for_owner,
        reason=reason,
    )
    options = [AskOption(ALLOW, "this once"), AskOption(DENY, "the agent is told so")]
    if rules:
        options.append(AskOption(ALWAYS, approval.always))
    return ApprovalQuestion(
        AskQuestion(
            question=describe_approval(approval),
            header=call.name,
            options=tuple(options),
            approval=approval,
        ),
        rules,
    )


def compute_digest(call: ToolDispatch) -> str:
    """Hash everything that decides what the call does."""
    parts = [call.agent, call.name, call.arguments, str(call.cwd)]
    data = json.dumps(parts, ensure_ascii=True).encode()
    return hashlib.sha256(data).hexdigest()


def describe_call(request: PermissionRequest) -> str:
    """Describe the whole call for a person: a command as it is, an edit as lines removed and
    added, any other call by its arguments."""
    arguments = dict(request.arguments)
    if not arguments:
        return escape_invisible(request.call.arguments)
    lines: list[str] = []
    if request.access.kind == "shell" and isinstance(arguments.get("command"), str):
        arguments.pop("env", None)
        lines.append(escape_invisible(str(arguments.pop("command"))))
    elif request.access.kind == "edit":
        lines.append(escape_invisible(str(arguments.pop("path", ""))))
        for key, sign in (("old_string", "-"), ("new_string", "+")):
            if key in arguments:
                text = escape_invisible(str(arguments.pop(key)))
                lines += [f"{sign} {line}" for line in text.split("\n")]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{escape_invisible(key)}: {escape_invisible(text)}")
    return "\n".join(lines)


def list_command_variables(request: PermissionRequest) -> dict[str, str]:
    """Return the environment variables that a call sets for its command."""
    env = request.arguments.get("env") if request.access.kind == "shell" else None
    if not isinstance(env, dict):
        return {}
    return {escape_invisible(str(key)): escape_invisible(str(value)) for key, value in env.items()}


def describe_approval(approval: ApprovalRequest) -> str:
    """Format the approval as one text, for clients that show only the question's text."""
    lines = [f"May {approval.agent} call {approval.tool}? {approval.reason}", approval.call]
    lines += [f"with {name}={value}" for name, value in approval.env.items()]
    lines.append(f"in {approval.cwd}")
    if approval.for_owner:
        lines.append(f"for {escape_invisible(approval.requested_by)}")
    return "\n".join(lines)


def escape_invisible(text: str) -> str:
    """Escape control and invisible characters, except line feeds and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or not is_invisible(character)
        else f"\\u{{{ord(character):x}}}"
        for character in text
    )


def suggest_rules(request: PermissionRequest) -> tuple[str, ...]:
    """Return the rules that "Always" would store for this call; none if no rule is safe."""
    call = request.call
    match request.access.kind:
        case "shell":
            if request.arguments.get("env"):
                return ()
            from .shell.suggestions import suggest_shell_rules  # late, as all of the shell parser

            return tuple(
                f"bash({rule})" for rule in suggest_shell_rules(request.access.target) or ()
            )
        case "edit":
            path = request.path
            if path is None or PATTERN_CHARACTERS & set(str(path)):
                return ()  # the rule would match other files too
            return (f"{call.name}({path})",)
        case "mcp":
            if not request.names or PATTERN_CHARACTERS & set(request.names[0]):
                return ()
            return (f"mcp({request.names[0]})",)
        case "delegate":
            return ()
    return (request.names[0],) if request.names else ()


def describe_rules(rules: Sequence[str]) -> str:
    """Describe rules in words, for the person who decides."""
    return "; ".join(describe_rule(rule) for rule in rules)


def describe_rule(rule: str) -> str:
    tool, _, rest = rule.partition("(")
    pattern = escape_invisible(rest.removesuffix(")"))
    if tool == "bash":
        is_prefix = pattern.endswith(":*")
        command = pattern.removesuffix(":*")
        calls = f"commands that begin with `{command}`" if is_prefix else f"the command `{command}`"
    elif tool == "mcp":
        calls = f"every call of {pattern}"
    elif rest:
        calls = f"{tool} of {pattern}"
    else:
        calls = f"every call of {tool}"
    return f"{calls}, in this conversation"


def parse_answer(
    approval: ApprovalQuestion, reply: str | None, *, is_only_question: bool
) -> ApprovalAnswer:
    """Find the answer to a question in a reply. Anything but a clear yes means no.

    Forms reply with a JSON object from question to label. A bare word counts only if the ask had
    one question; otherwise it would allow calls that the person may not have looked at.
    """
    if reply is None:
        return ApprovalAnswer(False)
    answer: Any
    try:
        answer = json.loads(reply)
    except ValueError:
        answer = reply
    if isinstance(answer, dict):
        answer = answer.get(approval.question.question, "")
    elif not is_only_question:
        answer = ""
    word = str(answer).strip().lower()
    is_always = word in ALWAYS_WORDS and bool(approval.rules)
    return ApprovalAnswer(word in YES_WORDS or word in ALWAYS_WORDS, is_always)
