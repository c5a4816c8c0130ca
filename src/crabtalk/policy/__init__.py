"""Decides who may do what: sender trust, permission rules, modes, approvals and file access."""

from typing import TYPE_CHECKING

from crabtalk.lazy_imports import load_lazily

from .defaults import MODE_DESCRIPTIONS, MODE_LABELS, Mode, ToolInScope, parse_mode
from .file_access import FileAccess
from .policy import Decision, Policy, PolicyVerdict, find_caller_sandbox
from .rules import PermissionRequest, Permissions, Rule, parse_rule
from .sender_trust import Owners, TrustLevel, is_trusted

if TYPE_CHECKING:
    from .approvals import (
        ALLOW,
        ALWAYS,
        DENY,
        ApprovalAnswer,
        ApprovalQuestion,
        build_question,
        compute_digest,
        parse_answer,
    )
    from .explanation import Explanation, ToolExplanation, build_kinds_table, explain_permissions

__all__ = [
    "ALLOW",
    "ALWAYS",
    "DENY",
    "MODE_DESCRIPTIONS",
    "MODE_LABELS",
    "ApprovalAnswer",
    "ApprovalQuestion",
    "Decision",
    "Explanation",
    "FileAccess",
    "Mode",
    "Owners",
    "PermissionRequest",
    "Permissions",
    "Policy",
    "PolicyVerdict",
    "Rule",
    "ToolExplanation",
    "ToolInScope",
    "TrustLevel",
    "build_kinds_table",
    "build_question",
    "compute_digest",
    "explain_permissions",
    "find_caller_sandbox",
    "is_trusted",
    "parse_answer",
    "parse_mode",
    "parse_rule",
]

# Only loaded when a person is asked for an approval, or asks for an explanation.
__getattr__ = load_lazily(
    __name__,
    {
        "approvals": (
            *("ALLOW", "ALWAYS", "DENY", "ApprovalAnswer", "ApprovalQuestion"),
            *("build_question", "compute_digest", "parse_answer"),
        ),
        "explanation": (
            "Explanation",
            "ToolExplanation",
            "explain_permissions",
            "build_kinds_table",
        ),
    },
)
