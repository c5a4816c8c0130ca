"""Parses a shell line into all simple commands that it would run, however deeply nested.

tree-sitter parses the line. Wherever bash could read it differently (text outside all tokens, two
words without a space, a substitution inside a plain token), the line counts as unreadable. This
module does not decide whether a command may run; see rules.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import wrappers
from .commands import ANY_WORDS, UNKNOWN, Redirect, ShellWord, SimpleCommand, UnreadableCommandError
from .grammar import (
    ASSIGNING_EXPANSION,
    CHARACTERS_BEFORE_COMMAND,
    EVALUATED_INDEX,
    EXPANSION_NODES,
    EXPRESSION_NODES,
    HIDDEN_SUBSTITUTION,
    INDEX_OF_UNKNOWN,
    INDEX_TEXT,
    NUMBER_EVALUATION,
    QUOTED_SUBSTITUTION,
    STATEMENT_NODES,
    WORD_NODES,
    WORD_SEPARATOR,
    collect_expansions,
    find_assigned_variables,
    is_in_arithmetic,
    read_program_name,
)
from .here_documents import find_backticks, read_here_document, unescape_backticks
from .source import ParseBudget, ShellSource
from .words import DISAGREEMENT, read_word

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 12
MAX_COMMANDS = 1000
MAX_TREE_LEVELS = 120
HIDDEN_IN_INDEX = "it hides a command in the index of a variable"


def parse_commands(line: str) -> tuple[SimpleCommand, ...]:
    """Return all simple commands the line would run, both wrappers and the commands inside them.

    Raises UnreadableCommandError if that is not clear.
    """
    collector = CommandCollector()
    try:
        collector.parse_text(line, depth=0, parent=None, is_guess=False)
    except RecursionError:
        raise UnreadableCommandError("it is nested too deeply") from None
    if re.search(r"\$\{?(HOME|PWD)\b", line):
        # A program below $HOME has a known name, unless the line assigns $HOME.
        for command in collector.commands:
            if any(name in ("HOME", "PWD") for name, _ in command.assignments):
                raise UnreadableCommandError("it changes a variable that it names programs with")
    if collector.has_index_text and NUMBER_EVALUATION.search(line):
        raise UnreadableCommandError(HIDDEN_IN_INDEX)
    return tuple(collector.commands)


class CommandCollector:
    """Collects commands in `commands`. All texts nested in a line share one budget."""

    def __init__(self) -> None:
        self.commands: list[SimpleCommand] = []
        self.has_index_text = False  # quoted text that runs a command if it is read as a number
        self._budget = ParseBudget()

    def parse_text(
        self, text: str, depth: int, parent: SimpleCommand | None, is_guess: bool
    ) -> None:
        if depth > MAX_DEPTH:
            raise UnreadableCommandError("it is nested too deeply")
        if UNKNOWN in text:
            raise UnreadableCommandError("it runs a text that is only known at run time")
        source = ShellSource(text, self._budget)
        SyntaxTreeReader(self, source, depth, parent, is_guess).read_all()

    def add(self, command: SimpleCommand, depth: int) -> None:
        """Add a command, and those among its arguments."""
        if depth > MAX_DEPTH:
            raise UnreadableCommandError("it is nested too deeply")
        if len(self.commands) >= MAX_COMMANDS:
            raise UnreadableCommandError(f"it runs more than {MAX_COMMANDS} commands")
        self.commands.append(command)
        for inner in wrappers.find_inner_commands(command):
            is_guess = command.is_guess or inner.is_guess
            try:
                if inner.text is not None:
                    self.parse_text(inner.text, depth + 1, command, is_guess)
                else:
                    self.add_words(
                        inner.words, (), inner.assignments, depth + 1, command, is_guess, True
                    )
            except UnreadableCommandError:
                if not inner.is_guess or inner.starts_shell:
                    raise

    def add_words(
        self,
        words: Sequence[ShellWord],
        redirects: Sequence[Redirect],
        assignments: Sequence[tuple[str, ShellWord]],
        depth: int,
        parent: SimpleCommand | None,
        is_guess: bool,
        is_inner: bool = False,
    ) -> None:
        program = read_program_name(words[0]) if words else ""
        wrapper_programs = (*parent.wrapper_programs, parent.program) if parent else ()
        # The command inside a wrapper reads the wrapper's here-documents.
        inherited = parent.redirects if parent is not None and is_inner else ()
        command = SimpleCommand(
            program=program,
            path=words[0].text if words else "",
            words=tuple(words[1:]),
            assignments=(*assignments, *find_assigned_variables(program, words[1:])),
            redirects=(*inherited, *redirects),
            wrapper_programs=wrapper_programs,
            parent=parent,
            is_guess=is_guess,
        )
        self.add(command, depth)


class SyntaxTreeReader:
    """Walks the tree of one text."""

    def __init__(
        self,
        collector: CommandCollector,
        source: ShellSource,
        depth: int,
        parent: SimpleCommand | None,
        is_guess: bool,
    ) -> None:
        self._collector = collector
        self._source = source
        self._text = source.text
        self._depth = depth
        self._parent = parent
        self._is_guess = is_guess
        self._level = 0

    def read_all(self) -> None:
        root = self._source.root
        outside = self._text[: root.start_byte] + self._text[root.end_byte :]
        if outside.replace(b"\\\n", b"").strip(b" \t\n"):
            raise UnreadableCommandError(DISAGREEMENT)
        self._walk(root)
        self._source.check_masked()

    def _walk(self, node: "Node") -> None:
        kind = node.type
        if kind == "command":
            self._read_command(node, ())
        elif kind == "redirected_statement":
            self._read_redirected(node)
        elif kind in ("declaration_command", "unset_command"):
            self._read_declaration(node)
        elif kind == "variable_assignment" and is_in_arithmetic(node):
            self._walk_children(node)
        elif kind == "variable_assignment":
            self._add_command((), (), (self._read_assignment(node),))
            self._walk_children(node)
        elif kind in ("file_redirect", "herestring_redirect"):
            # On the body of a function; redirects of commands are read with the command.
            self._add_command((), (self._read_redirect(node)[0],), ())
            self._walk_children(node)
        elif kind == "command_substitution" and self._text[node.start_byte] == ord("`"):
            self._read_backticks(node)
        elif kind == "test_command" and EVALUATED_INDEX.search(self._quoted_text(node)):
            raise UnreadableCommandError(HIDDEN_IN_INDEX)
        elif kind == "for_statement" and self._sets_special_variable(node):
            raise UnreadableCommandError("it changes a variable that decides what runs")
        elif (
            kind in STATEMENT_NODES
            or kind in EXPRESSION_NODES
            or kind in WORD_NODES
            or not node.is_named
        ):
            self._check_leaf(node)
            self._check_gaps(node)
            self._walk_children(node)
        else:
            raise UnreadableCommandError(f"it uses {kind.replace('_', ' ')}")

    def _walk_children(self, node: "Node") -> None:
        self._level += 1
        if self._level > MAX_TREE_LEVELS:
            raise UnreadableCommandError("it is nested too deeply")
        for child in node.children:
            self._walk(child)
        self._level -= 1

    def _quoted_text(self, node: "Node") -> str:
        """Return all quoted text below a node."""
        text = self._text[node.start_byte : node.end_byte]
        if node.type in ("raw_string", "ansi_c_string"):
            return text.decode()
        if node.type == "string" and re.search(rb"\\[$`]", text):
            return text.decode().replace("\\", "")
        return "\n".join(filter(None, map(self._quoted_text, node.children)))

    def _sets_special_variable(self, node: "Node") -> bool:
        name = node.child_by_field_name("variable")
        text = self._text[name.start_byte : name.end_byte].decode() if name else ""
        return is_special_variable(text)

    def _check_leaf(self, node: "Node") -> None:
        if node.is_missing:
            raise UnreadableCommandError("it is not complete")
        if node.type in ("raw_string", "string"):
            self._source.confirm_masked(node.start_byte, node.end_byte)
        text = self._text[node.start_byte : node.end_byte]
        if node.type == "expansion" and re.search(rb"@P\s*\}", text):
            raise UnreadableCommandError("it expands a text that is only known at run time")
        if node.type == "expansion":
            assigned = ASSIGNING_EXPANSION.match(text.decode("utf-8", "replace"))
            if assigned is not None and is_special_variable(assigned[1]):
                raise UnreadableCommandError("it changes a variable that decides what runs")
        is_quoted = node.type in ("raw_string", "ansi_c_string", "string", "word") and b"[" in text
        if is_quoted and INDEX_TEXT.search(text.decode("utf-8", "replace").replace("\\", "")):
            self._collector.has_index_text = True
        if (
            node.child_count
            or not node.is_named
            or node.type in ("raw_string", "ansi_c_string", "comment")
        ):
            return
        if HIDDEN_SUBSTITUTION.search(text):
            raise UnreadableCommandError(DISAGREEMENT)

    def _check_gaps(self, node: "Node") -> None:
        """Check that there are only blanks and newlines between the parts of a node."""
        if node.type == "string" or node.child_count < 2:
            return
        at = node.start_byte
        for child in node.children:
            gap = self._text[at : child.start_byte].replace(b"\\\n", b"")
            if gap.strip(b" \t\n"):
                raise UnreadableCommandError(DISAGREEMENT)
            at = child.end_byte

    def _read_backticks(self, node: "Node") -> None:
        text = self._text[node.start_byte : node.end_byte]
        inner = re.fullmatch(rb"`((?:[^`\\]|\\.)*)`", text, re.DOTALL)
        if inner is None or b'\\"' in inner[1]:
            raise UnreadableCommandError(DISAGREEMENT)
        script = unescape_backticks(inner[1])
        self._collector.parse_text(script, self._depth + 1, self._parent, self._is_guess)
        # Quotes inside it were checked by that parse.
        for start, end in list(self._source.masked_ranges):
            if node.start_byte <= start < node.end_byte:
                self._source.confirm_masked(start, end)

    def _read_redirected(self, node: "Node") -> None:
        body = node.child_by_field_name("body")
        redirects = node.children_by_field_name("redirect")
        if (
            {child.id for child in node.children}
            - {redirect.id for redirect in redirects}
            - {body.id if body else 0}
        ):
            raise UnreadableCommandError(DISAGREEMENT)
        if body is not None and body.type != "command":
            self._walk(body)
            self._check_separation(body.end_byte, redirects[0])
        self._read_command(body if body is not None and body.type == "command" else None, redirects)

    def _read_command(self, command: "Node | None", redirects: Sequence["Node"]) -> None:
        """Read one simple command. tree-sitter may attach some of its words to redirects."""
        parts = [*(command.children if command else ()), *redirects]
        words: list[Node] = []
        dashes: list[tuple[int, ShellWord]] = []
        targets: list[Redirect] = []
        assignments: list[tuple[str, ShellWord]] = []
        position = parts[0].start_byte
        for part in parts:
            # tree-sitter drops a lone dash before a here-document: `python3 - <<EOF`.
            if re.fullmatch(rb"[ \t]+-[ \t]+", self._text[position : part.start_byte]):
                dashes.append((position, ShellWord("-")))
            else:
                self._check_separation(position, part)
            position = part.end_byte
            if part.type == "variable_assignment":
                assignments.append(self._read_assignment(part))
                self._walk_children(part)
            elif part.type in ("file_redirect", "herestring_redirect"):
                redirect, extra_words = self._read_redirect(part)
                targets.append(redirect)
                words += extra_words
                self._check_gaps(part)
                self._walk_children(part)
            elif part.type == "heredoc_redirect":
                redirect, extra_words = self._read_here_document(part, targets)
                targets.append(redirect)
                words += extra_words
            elif (
                part.type == "command_name"
                or part.type in WORD_NODES
                or part.type in ("==", "=~", "$")
            ):
                words.append(part)
                self._walk(part)
            else:
                raise UnreadableCommandError(
                    f"it uses {part.type.replace('_', ' ')} as an argument"
                )
        ordered = sorted([*dashes, *((word.start_byte, self._read_word(word)) for word in words)])
        self._add_command([word for _, word in ordered], targets, assignments)

    def _check_separation(self, position: int, part: "Node") -> None:
        gap = self._text[position : part.start_byte]
        if WORD_SEPARATOR.fullmatch(gap) is None:
            raise UnreadableCommandError(DISAGREEMENT)
        is_redirect = part.type.endswith("_redirect") and part.children[0].type != "file_descriptor"
        if not gap.replace(b"\\\n", b"") and position != part.start_byte:
            raise UnreadableCommandError(DISAGREEMENT)
        before = self._text[position - 1 : position]
        if (
            not gap
            and position
            and not is_redirect
            and before not in (b"", b"\n", *CHARACTERS_BEFORE_COMMAND)
        ):
            raise UnreadableCommandError(DISAGREEMENT)

    def _read_declaration(self, node: "Node") -> None:
        """Read export, declare and similar builtins, and unset."""
        name, *rest = node.children
        position = name.end_byte
        words = [ShellWord(name.type)]
        assignments = []
        for part in rest:
            self._check_separation(position, part)
            position = part.end_byte
            if part.type == "variable_assignment":
                assignments.append(self._read_assignment(part))
                words.append(ShellWord(UNKNOWN))
                self._walk_children(part)
            elif part.type in WORD_NODES:
                words.append(self._read_word(part))
                self._walk(part)
            else:
                raise UnreadableCommandError(
                    f"it uses {part.type.replace('_', ' ')} as an argument"
                )
        self._add_command(words, (), assignments)

    def _add_command(
        self,
        words: Sequence[ShellWord],
        redirects: Sequence[Redirect],
        assignments: Sequence[tuple[str, ShellWord]],
    ) -> None:
        if words or redirects or assignments:
            self._collector.add_words(
                words, redirects, assignments, self._depth, self._parent, self._is_guess
            )

    def _read_word(self, node: "Node") -> ShellWord:
        expansions: dict[int, tuple[int, str]] = {}
        collect_expansions(node, expansions)
        return read_word(self._text, node.start_byte, node.end_byte, expansions)

    def _read_assignment(self, node: "Node") -> tuple[str, ShellWord]:
        name, *rest = node.children
        text = self._text[name.start_byte : name.end_byte].decode("utf-8", "replace")
        self._check_gaps(node)
        if len(rest) < 2:
            return text, ShellWord("")
        if len(rest) > 2 or rest[0].end_byte != rest[1].start_byte:
            raise UnreadableCommandError(DISAGREEMENT)
        value = ANY_WORDS if rest[1].type == "array" else self._read_word(rest[1])
        if (
            EVALUATED_INDEX.search(value.text)
            or INDEX_OF_UNKNOWN.search(value.text)
            or QUOTED_SUBSTITUTION.search(value.text)
        ):
            raise UnreadableCommandError(HIDDEN_IN_INDEX)
        return text.partition("[")[0], value

    def _read_redirect(self, node: "Node") -> tuple[Redirect, list["Node"]]:
        """Return the redirect, and words of the command that tree-sitter attached to it."""
        parts = [child for child in node.children if child.type != "file_descriptor"]
        if parts and parts[0].is_named:  # {name}>file
            parts = parts[1:]
        if not parts or any(child.type not in WORD_NODES for child in parts[1:]):
            raise UnreadableCommandError(DISAGREEMENT)
        operator = parts[0].type
        first = node.children[0]
        if (
            first.type == "file_descriptor"
            and self._text[first.start_byte : first.end_byte] != b"0"
        ):
            operator = operator.replace("<", "n<", 1)  # not the command's stdin
        if len(parts) == 1:
            return Redirect(operator, ShellWord("-" if operator.endswith("-") else "")), []
        target = self._read_word(parts[1])
        position = parts[1].end_byte
        for part in parts[2:]:
            self._check_separation(position, part)
            position = part.end_byte
        return Redirect(operator, target), parts[2:]

    def _read_here_document(
        self, node: "Node", targets: list[Redirect]
    ) -> tuple[Redirect, list["Node"]]:
        """Return the document, and words of the command that follow the operator."""
        parts = {child.type: child for child in node.children}
        start, end = parts.get("heredoc_start"), parts.get("heredoc_end")
        if start is None or end is None:
            raise UnreadableCommandError("a here-document is not complete")
        extra_words: list[Node] = []
        position = start.end_byte
        for child in node.children:
            if child.type in ("heredoc_start", "heredoc_body", "heredoc_end", "<<", "<<-"):
                continue
            if child.type in WORD_NODES:
                self._check_separation(position, child)
                extra_words.append(child)
                self._walk(child)
            elif child.type == "file_redirect":
                redirect, extra = self._read_redirect(child)
                targets.append(redirect)
                extra_words += extra
                self._walk_children(child)
            elif child.type == "file_descriptor":
                raise UnreadableCommandError("a here-document has a number of its own")
            else:
                self._walk(child)
            position = child.end_byte
        operator = "<<-" if "<<-" in parts else "<<"
        body = self._read_here_document_body(position, parts, operator == "<<-")
        return Redirect(operator, body), extra_words

    def _read_here_document_body(
        self, position: int, parts: dict[str, "Node"], has_tabs: bool
    ) -> ShellWord:
        start, end = parts["heredoc_start"], parts["heredoc_end"]
        delimiter = (start.start_byte, start.end_byte)
        document = read_here_document(self._text, delimiter, position, end.start_byte, has_tabs)
        self._source.confirm_masked(document.first, document.last - 1)
        if INDEX_TEXT.search(document.text.replace("\\", "")):
            self._collector.has_index_text = True
        if document.is_quoted:
            return ShellWord(document.text)
        expansions: dict[int, tuple[int, str]] = {}
        if (body := parts.get("heredoc_body")) is not None:
            collect_expansions(body, expansions)
            for child in body.children:
                if child.type in EXPANSION_NODES:
                    self._walk(child)
        for script in find_backticks(self._text, document, expansions):
            self._collector.parse_text(script, self._depth + 1, self._parent, self._is_guess)
        return ANY_WORDS if re.search(r"[$`\\]", document.text) else ShellWord(document.text)


def is_special_variable(name: str) -> bool:
    """Whether a variable changes what runs."""
    return any(SimpleCommand("", "", assignments=((name, ANY_WORDS),)).dangerous_assignments())
