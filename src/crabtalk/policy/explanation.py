"""Explanation: what a sender may do with an agent, tool by tool, and why.

It applies the same rules in the same order as the policy does for a call. Conditions that depend
on the call itself (a path, a command) are listed in words.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from crabtalk.storage import Agent

from .defaults import (
    KIND_DESCRIPTIONS,
    STRANGER_DENIALS,
    STRANGER_LIMITS,
    Mode,
    ToolInScope,
    decide_by_default,
)
from .policy import Policy, list_stranger_folders
from .rules import Permissions, Rule
from .sender_trust import TrustLevel


class ToolExplanation(msgspec.Struct, frozen=True):
    tool: str
    verdict: str
    reason: str


class Explanation(msgspec.Struct, frozen=True):
    trust_level: TrustLevel
    trust_reason: str
    mode: Mode
    tools: tuple[ToolExplanation, ...]
    notes: tuple[str, ...]


def explain_permissions(
    policy: Policy,
    agent: Agent,
    sender: str,
    mode: Mode,
    tools: Sequence[ToolInScope],
) -> Explanation:
    trust_level = policy.owners.find_trust_level(sender, (agent,))
    lines = tuple(explain_tool(agent, sender, trust_level, mode, tool) for tool in tools)
    notes = collect_notes(policy, agent, sender, trust_level)
    return Explanation(
        trust_level, policy.owners.explain_trust_level(sender, agent), mode, lines, notes
    )


def explain_tool(
    agent: Agent, sender: str, trust_level: TrustLevel, mode: Mode, tool: ToolInScope
) -> ToolExplanation:
    name, names, kind = tool.name, tool.names, tool.kind
    if not tool.is_offered:
        return ToolExplanation(name, "deny", f"the file of {agent.name} does not offer it")
    permissions = Permissions.from_agent(agent)
    is_stranger = trust_level is TrustLevel.STRANGER
    if (denied := find_whole_tool_rule(permissions.deny, names, kind)) is not None:
        return ToolExplanation(name, "deny", f"the file of {agent.name} denies {denied}")
    if is_stranger and kind in STRANGER_DENIALS:
        opened = find_tool_rules(permissions.strangers, names, kind)
        if not opened:
            sentence = STRANGER_DENIALS[kind].format(sender=repr(sender[:80]), agent=agent.name)
            verdict = "allow" if kind == "delegate" else "deny"
            return ToolExplanation(
                name, verdict, "workers only" if kind == "delegate" else sentence
            )
    decision, reason = decide_by_default(kind, mode)
    is_denied_by_plan = mode is Mode.PLAN and decision == "deny"  # rules cannot override this
    ask_rule = find_whole_tool_rule(permissions.ask, names, kind)
    allow_rule = find_whole_tool_rule(permissions.allow, names, kind)
    if ask_rule is not None and not is_denied_by_plan:
        decision, reason = "ask", f"the file of {agent.name} asks before {ask_rule}"
    elif allow_rule is not None and not is_denied_by_plan:
        decision, reason = "allow", f"the file of {agent.name} allows {allow_rule}"
    elif kind == "shell" and mode is not Mode.AUTO:
        reason = f"{reason}; commands that only read run without a question"
    partial = [
        f"{word} {rule}"
        for word, rules in (
            ("denied:", permissions.deny),
            ("asks:", permissions.ask),
            ("allowed:", permissions.allow),
        )
        for rule in find_tool_rules(rules, names, kind)
        if rule.pattern is not None
    ]
    if is_stranger and kind in STRANGER_DENIALS:
        partial.insert(0, f"only {', '.join(map(str, opened))}")
    if is_stranger and (limit := STRANGER_LIMITS.get(kind)) is not None:
        partial.insert(0, limit)
    if is_stranger and decision == "ask":
        partial.append("the owner is asked, not the sender")
    return ToolExplanation(name, decision, "; ".join([reason, *partial]))


def find_tool_rules(rules: Sequence[Rule], names: Sequence[str], kind: str) -> list[Rule]:
    return [
        rule
        for rule in rules
        if any(fnmatchcase(name, rule.tool) for name in names)
        or (
            rule.tool == "mcp"
            and kind == "mcp"
            and any(rule.pattern is None or fnmatchcase(name, rule.pattern) for name in names)
        )
    ]


def find_whole_tool_rule(rules: Sequence[Rule], names: Sequence[str], kind: str) -> Rule | None:
    """Return a rule that covers every call of a tool."""
    return next(
        (
            rule
            for rule in find_tool_rules(rules, names, kind)
            if rule.pattern is None or rule.tool == "mcp"
        ),
        None,
    )


def collect_notes(
    policy: Policy, agent: Agent, sender: str, trust_level: TrustLevel
) -> tuple[str, ...]:
    """Return the limits that apply to all tools."""
    notes: list[str] = []
    bash = agent.hooks.get("bash", {})
    if bash.get("sandbox", "off") != "off":
        notes.append(f"commands run in a sandbox ({bash['sandbox']}), and so do those of delegates")
    if bash.get("deny"):
        notes.append(f"commands denied: {', '.join(map(str, bash['deny']))}")
    if trust_level is TrustLevel.STRANGER and policy.home is not None:
        folder = policy.find_working_directory(agent, sender, policy.home)
        opened = ", ".join(map(str, (folder, *list_stranger_folders((agent,), "read", "edit"))))
        notes.append(f"files: only in {opened}")
    elif roots := agent.hooks.get("files", {}).get("roots"):
        notes.append(f"files: only in {', '.join(map(str, roots))}")
    else:
        notes.append("files: all this account may use, but for the daemon's home and processes")
    if trust_level is TrustLevel.OWNER:
        notes.append("memory: your notes, and those the agent wrote while you spoke")
    else:
        notes.append("memory and sessions: only the sender's own")
    notes.append("delegated runs have the caller's limits and their own")
    return tuple(notes)


def build_kinds_table() -> list[tuple[str, ...]]:
    """Return rows for the docs: what a kind of tool does, the decision in each mode, and the limits
    of strangers."""
    rows: list[tuple[str, ...]] = []
    for kind, words in KIND_DESCRIPTIONS.items():
        modes = [decide_by_default(kind, mode)[0] for mode in Mode]
        stranger = (
            "denied"
            if kind == "shell"
            else STRANGER_LIMITS.get(kind)
            or ("to workers only" if kind == "delegate" else "as the owner")
        )
        rows.append((words, *modes, stranger))
    return rows
