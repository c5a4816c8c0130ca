"""The values that the shell parser returns: words, redirects and simple commands.

They hold what is known before the line runs. A part of a word that is only known at run time (the
value of a variable, the output of a command, the files a pattern finds) is the character UNKNOWN.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# No word of bash can contain a NUL, so this cannot be confused with text.
UNKNOWN = "\0"

# Variables that make a program load or run code which the line does not show.
CODE_VARIABLES = re.compile(
    r"BASH_ENV|ENV|BASH_FUNC_.*|BASH_LOADABLES_PATH|BASHOPTS|SHELLOPTS|PROMPT_COMMAND|PS[0124]"
    r"|LD_.*|DYLD_.*|GCONV_PATH|GLIBC_TUNABLES"
    r"|PYTHON(STARTUP|PATH|HOME|INSPECT|WARNINGS|BREAKPOINT)|PERL5?(OPT|LIB|5DB)|PERL5(OPT|LIB|DB)"
    r"|RUBY(OPT|LIB)|NODE_(OPTIONS|PATH)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|LUA_INIT.*"
    r"|GIT_(SSH|SSH_COMMAND|EXTERNAL_DIFF|PAGER|EDITOR|SEQUENCE_EDITOR|ASKPASS|PROXY_COMMAND"
    r"|EXEC_PATH|TEMPLATE_DIR|CONFIG.*)"
    r"|PAGER|MANPAGER|LESSOPEN|LESSCLOSE|LESSEDIT|EDITOR|VISUAL|BROWSER|SSH_ASKPASS|SUDO_ASKPASS"
    r"|SUDO_EDITOR|RSYNC_RSH|TAR_OPTIONS|GREP_OPTIONS|MAKEFLAGS|MAKEFILES|GNUMAKEFLAGS|RUSTC_WRAPPER"
    r"|CARGO_.*_RUNNER|npm_config_.*|VIMINIT|EXINIT|ZDOTDIR|FPATH|RIPGREP_CONFIG_PATH"
)
# Variables that change which file a program name stands for, or how a shell reads its text.
LOOKUP_VARIABLES = re.compile(r"PATH|CDPATH|HOME|SHELL|IFS|GLOBIGNORE|POSIXLY_CORRECT|TMPDIR|PWD")


class UnreadableCommandError(ValueError):
    """It is not clear what a line would run. The text says why; it completes "because ..."."""


@dataclass(frozen=True, slots=True, order=True)
class ShellWord:
    """One word without its quotes. `may_split` means that the unknown part can expand to any number
    of words, so nothing is known about the word."""

    text: str
    may_split: bool = False

    @property
    def is_literal(self) -> bool:
        return UNKNOWN not in self.text

    def may_be_option(self) -> bool:
        """Whether the word is, or could become, one that starts with a dash."""
        return self.may_split or self.text.startswith(("-", "+", UNKNOWN))

    def may_equal(self, text: str) -> bool:
        if self.is_literal:
            return self.text == text
        if self.may_split:
            return True
        pieces = self.text.split(UNKNOWN)
        return bool(re.fullmatch(".*".join(map(re.escape, pieces)), text, re.DOTALL))

    def __str__(self) -> str:
        return self.text.replace(UNKNOWN, "…")


ANY_WORDS = ShellWord(UNKNOWN, may_split=True)


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect such as `> file`.

    For here-documents and here-strings the target is the text itself. If an input redirect is for
    another descriptor than stdin, its operator starts with n.
    """

    operator: str
    target: ShellWord

    @property
    def is_text(self) -> bool:
        return self.operator in ("<<", "<<-", "<<<")

    @property
    def writes_file(self) -> bool:
        """Whether it could create or change a file. Redirects to /dev/null and copies of
        descriptors do not."""
        if self.is_text or self.operator in ("<", "n<", "n<<<"):
            return False
        if self.target.text == "/dev/null":
            return False
        is_copy = self.operator in (">&", "<&", "n<&") and re.fullmatch(
            r"\d+-?|-", self.target.text
        )
        return not is_copy


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """A program a line would start, with its arguments.

    A statement that only assigns or redirects has the program "". `wrapper_programs` names the
    wrappers around the command, outermost first, and `parent` is the innermost of them. A guess is
    a command that a program such as docker may or may not run from its arguments.
    """

    program: str
    path: str
    words: tuple[ShellWord, ...] = ()
    assignments: tuple[tuple[str, ShellWord], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    wrapper_programs: tuple[str, ...] = ()
    parent: "SimpleCommand | None" = None
    is_guess: bool = False

    @property
    def is_literal(self) -> bool:
        return UNKNOWN not in self.path and all(word.is_literal for word in self.words)

    def dangerous_assignments(self) -> Iterator[str]:
        """Names of assigned variables that change what runs."""
        for name, _ in self.assignments:
            if CODE_VARIABLES.fullmatch(name) or LOOKUP_VARIABLES.fullmatch(name):
                yield name

    def code_assignments(self) -> Iterator[str]:
        """Names of assigned variables that carry code the line does not show."""
        for name, _ in self.assignments:
            if CODE_VARIABLES.fullmatch(name):
                yield name

    def stdin_text(self) -> ShellWord | None:
        """Return the text of the here-document or here-string that is the command's input. The last
        input redirect counts."""
        text = None
        for redirect in self.redirects:
            if redirect.operator.startswith("<"):
                text = redirect.target if redirect.is_text else None
        return text


def get_base_name(path: str) -> str:
    return path.rpartition("/")[2]


def split_name_set(text: str) -> frozenset[str]:
    """Split names at blanks. A long list is easier to read as one string."""
    return frozenset(text.split())
