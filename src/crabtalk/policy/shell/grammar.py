"""Node types of the tree-sitter grammar, and patterns for text that bash may read differently."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .commands import (
    ANY_WORDS,
    UNKNOWN,
    ShellWord,
    UnreadableCommandError,
    get_base_name,
    split_name_set,
)
from .words import DISAGREEMENT

if TYPE_CHECKING:
    from tree_sitter import Node

EXPANSION_NODES = {
    "arithmetic_expansion",
    "command_substitution",
    "expansion",
    "process_substitution",
    "simple_expansion",
}
WORD_NODES = EXPANSION_NODES | {
    "ansi_c_string",
    "brace_expression",
    "concatenation",
    "extglob_pattern",
    "number",
    "raw_string",
    "regex",
    "string",
    "translated_string",
    "variable_name",
    "word",
}
STATEMENT_NODES = {
    "c_style_for_statement",
    "case_item",
    "case_statement",
    "compound_statement",
    "do_group",
    "elif_clause",
    "else_clause",
    "for_statement",
    "function_definition",
    "if_statement",
    "list",
    "negated_command",
    "pipeline",
    "program",
    "subshell",
    "variable_assignments",
    "while_statement",
}
EXPRESSION_NODES = {
    "array",
    "binary_expression",
    "command_name",
    "comment",
    "file_descriptor",
    "heredoc_content",
    "parenthesized_expression",
    "postfix_expression",
    "special_variable_name",
    "string_content",
    "subscript",
    "ternary_expression",
    "test_command",
    "test_operator",
    "unary_expression",
}
# Words that bash reads as syntax in place of a program. tree-sitter reads some as programs.
RESERVED_WORDS = split_name_set(
    "! { } [[ ]] case do done elif else esac fi for function if in select then until while"
)
WORD_SEPARATOR = re.compile(rb"(?:[ \t]|\\\n)*")
HIDDEN_SUBSTITUTION = re.compile(rb"(?:^|[^\\])(?:\\\\)*(?:`|\$[({]|[<>]\()")
# Bash evaluates such an index wherever it expects a number or the name of a variable.
EVALUATED_INDEX = re.compile(r"\[.*(?:\$\(|`)", re.DOTALL)
# The same for text that becomes such an index later, in a variable or as an argument.
INDEX_TEXT = re.compile(r"\w\[[^\]]*(?:\$\(|`)")
INDEX_OF_UNKNOWN = re.compile(rf"\w\[[^\]]*{UNKNOWN}")
QUOTED_SUBSTITUTION = re.compile(r"\$\(|`")
# Places where bash reads a number, and therefore evaluates the text of a variable.
NUMBER_EVALUATION = re.compile(
    r"\(\(|\[\[|\$\[|\$\{[^}]*[:\[]|\b(?:let|declare|typeset|local|integer|mapfile|readarray)\b"
)
# ${NAME=text} and ${NAME:=text}
ASSIGNING_EXPANSION = re.compile(r"\$\{(\w+)(?:\[[^\]]*\])?:?=")
DECLARATION_BUILTINS = {"declare", "export", "local", "readonly", "typeset"}
EVALUATING_BUILTINS = DECLARATION_BUILTINS | {
    "[",
    "let",
    "mapfile",
    "printf",
    "read",
    "readarray",
    "test",
    "unset",
}
CHARACTERS_BEFORE_COMMAND = tuple(bytes([sign]) for sign in b" \t;&|(){}`!")


def is_in_arithmetic(node: "Node") -> bool:
    return node.parent is not None and node.parent.type == "c_style_for_statement"


def collect_expansions(node: "Node", expansions: dict[int, tuple[int, str]]) -> None:
    """Add the outermost expansions of a word: start → end and node type."""
    if node.type in EXPANSION_NODES:
        expansions[node.start_byte] = (node.end_byte, node.type)
        return
    for child in node.children:
        collect_expansions(child, expansions)


def read_program_name(word: ShellWord) -> str:
    """Return the base name of a program. Raises UnreadableCommandError if it is not known."""
    name = get_base_name(word.text)
    if word.may_split or UNKNOWN in name:
        raise UnreadableCommandError("which program it runs is only known at run time")
    if not name:
        raise UnreadableCommandError("a program in it has no name")
    if name in RESERVED_WORDS:
        raise UnreadableCommandError(DISAGREEMENT)
    return name


def find_assigned_variables(
    program: str, words: Sequence[ShellWord]
) -> Iterator[tuple[str, ShellWord]]:
    """Yield the variables that a builtin sets because its arguments name them."""
    if program not in EVALUATING_BUILTINS:
        return
    for number, word in enumerate(words):
        if EVALUATED_INDEX.search(word.text):
            raise UnreadableCommandError("it hides a command in the index of a variable")
        if program in DECLARATION_BUILTINS and "=" in word.text:
            name, _, value = word.text.partition("=")
            yield name.rstrip("+"), ShellWord(value, word.may_split)
        elif program in ("read", "mapfile", "readarray") or (
            program == "printf" and number and words[number - 1].text == "-v"
        ):
            yield word.text, ANY_WORDS
        elif program == "printf" and not number and re.match(r"-v.", word.text):
            yield word.text[2:], ANY_WORDS
