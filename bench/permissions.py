"""Permissions: the time of judging a tool call, and the verdicts on lines that evade rules.

    python -m bench permissions

The evasions and ordinary lines are the corpus of tests/policy.
"""

import time
import tomllib
from collections import Counter
from pathlib import Path

import msgspec

from crabtalk.policy import Policy
from crabtalk.policy.rules import PermissionRequest
from crabtalk.policy.shell.commands import UnreadableCommandError
from crabtalk.policy.shell.rules import find_denied_entry
from crabtalk.storage import Agent
from tests.policy.test_rules import build_request

from .tables import BenchTable

CORPUS = Path(__file__).parent.parent / "tests" / "policy"
CALLS = 500
# Tool, what it touches, and the target.
JUDGED = (
    ("recall", "memory-read", ""),
    ("read", "read", "src/a.py"),
    ("edit", "write", "src/a.py"),
    ("bash", "shell", "git status --short"),
)


def run_benchmark() -> list[BenchTable]:
    return [measure_judging(), count_verdicts()]


def measure_judging() -> BenchTable:
    table = BenchTable(
        "Judging a tool call, µs", ["call", "mode auto", "mode ask", "three callers"]
    )
    agents = {mode: make_agent(mode) for mode in ("auto", "ask")}
    callers = tuple(make_agent("auto") for _ in range(3))
    for tool, kind, target in JUDGED:
        request = build_request(tool, kind, target)
        delegated_request = build_request(tool, kind, target, lineage=callers)
        table.add_row(
            f"{tool} {target}".strip(),
            f"{time_judging(request, agents['auto']):.0f}",
            f"{time_judging(request, agents['ask']):.0f}",
            f"{time_judging(delegated_request, agents['auto']):.0f}",
        )
    return table


def make_agent(mode: str) -> Agent:
    return msgspec.structs.replace(Agent("crab", "You are crab."), mode=mode)


def time_judging(request: PermissionRequest, agent: Agent) -> float:
    policy = Policy()
    started = time.perf_counter()
    for _ in range(CALLS):
        policy.judge_blocking(request, agent)
    return (time.perf_counter() - started) / CALLS * 1e6


def count_verdicts() -> BenchTable:
    """Count how deny rules judge lines that run a denied program indirectly."""
    lines = tomllib.loads((CORPUS / "evasions.toml").read_text())["evasion"]
    counts: Counter[str] = Counter()
    started = time.perf_counter()
    for line in lines:
        try:
            entry = find_denied_entry(line["line"], [line["deny"]])
            counts["denied" if entry else "missed"] += 1
        except UnreadableCommandError:
            counts["refused as unreadable"] += 1
    took = (time.perf_counter() - started) / len(lines) * 1e6
    table = BenchTable(
        "Lines that evade a deny rule", ["lines", "denied", "refused as unreadable", "missed", "µs"]
    )
    kinds = ("denied", "refused as unreadable", "missed")
    table.add_row(str(len(lines)), *(str(counts[kind]) for kind in kinds), f"{took:.0f}")
    return table
