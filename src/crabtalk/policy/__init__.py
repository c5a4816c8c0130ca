"""Who may do what: origins of runs, permission rules, modes, approvals and confinement."""

from typing import TYPE_CHECKING

from crabtalk.late import late

from .defaults import DESCRIPTIONS, WORDS, Mode, ToolInScope, parse_mode
from .file_access import FileAccess
from .origins import Owners, Standing, is_trusted
from .policy import Decision, Policy, Verdict, sandbox_above
from .rules import Permissions, Request, Rule, parse_rule

if TYPE_CHECKING:
    from .approvals import (
        ALLOW,
        ALWAYS,
        DENY,
        Answer,
        Asked,
        build_question,
        digest_of,
        read_answer,
    )
    from .explanation import Explanation, ToolLine, explain_permissions, kinds_table

__all__ = [
    "ALLOW",
    "ALWAYS",
    "DENY",
    "DESCRIPTIONS",
    "WORDS",
    "Answer",
    "Asked",
    "Decision",
    "Explanation",
    "FileAccess",
    "Mode",
    "Owners",
    "Permissions",
    "Policy",
    "Request",
    "Rule",
    "Standing",
    "ToolInScope",
    "ToolLine",
    "Verdict",
    "build_question",
    "digest_of",
    "explain_permissions",
    "is_trusted",
    "kinds_table",
    "parse_mode",
    "parse_rule",
    "read_answer",
    "sandbox_above",
]

# Needed when people are asked something, or ask.
__getattr__ = late(
    __name__,
    {
        "approvals": (
            *("ALLOW", "ALWAYS", "DENY", "Answer", "Asked"),
            *("build_question", "digest_of", "read_answer"),
        ),
        "explanation": ("Explanation", "ToolLine", "explain_permissions", "kinds_table"),
    },
)
