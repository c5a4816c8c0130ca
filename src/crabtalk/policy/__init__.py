"""Who may do what: origins of runs, permission rules, modes, approvals and confinement."""

from .approvals import ALLOW, ALWAYS, DENY, Answer, Asked, build_question, digest_of, read_answer
from .explanation import Explanation, ToolInScope, ToolLine, explain, kinds_table
from .file_access import FileAccess
from .modes import DESCRIPTIONS, WORDS, Mode, parse_mode
from .origins import Owners, Standing, is_trusted
from .policy import Decision, Policy, Verdict, sandbox_above
from .rules import Permissions, Request, Rule, parse_rule

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
    "explain",
    "is_trusted",
    "kinds_table",
    "parse_mode",
    "parse_rule",
    "read_answer",
    "sandbox_above",
]
