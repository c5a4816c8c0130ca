"""Finds the commands that a command runs itself: `sh -c`, eval, sudo, xargs, find -exec and others.

If it is known how a program runs others, the inner command is found exactly. For programs with too
many ways (docker, tmux, npx), every word that could start a command is a guess.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from .commands import (
    ANY_WORDS,
    UNKNOWN,
    ShellWord,
    SimpleCommand,
    UnreadableCommandError,
    get_base_name,
)
from .options import SSH_OPTIONS, WRAPPER_OPTIONS, ParsedOptions, UnknownOptionError, parse_options
from .programs import (
    BUILTIN_RUNNERS,
    GIT_RUNNERS,
    GUESSED_PROGRAMS,
    INTERPRETERS,
    MANAGER_RUN_WORDS,
    PACKAGE_MANAGERS,
    PROGRAMS_WITH_COMMAND_OPTIONS,
    SHELLS,
    STDIN_PROGRAMS,
    InnerCommand,
    guess_commands,
    guess_commands_in_text,
    guess_literal_commands,
    guess_option_texts,
)


def find_inner_commands(command: SimpleCommand) -> Iterator[InnerCommand]:
    """Yield the commands that a command runs. Raises UnreadableCommandError if those are not in the
    line."""
    program = command.program
    name = re.sub(r"[\d.]+$", "", program) if program not in INTERPRETERS else program
    if program in SHELLS or name in SHELLS:
        yield from read_shell(command)
    elif program in COMMAND_READERS:
        yield from COMMAND_READERS[program](command)
    elif program in WRAPPER_OPTIONS:
        yield from read_wrapper(command)
    elif program in BUILTIN_RUNNERS:
        check_builtin(command)
    elif program in INTERPRETERS or name in INTERPRETERS:
        check_interpreter(command)
    elif program in STDIN_PROGRAMS:
        check_stdin(command)
    elif program == "git":
        yield from read_git(command)
    elif program in PACKAGE_MANAGERS:
        if any(
            word.text in MANAGER_RUN_WORDS or not word.is_literal for word in command.words[:12]
        ):
            yield from guess_commands(command.words)
    elif program in GUESSED_PROGRAMS:
        yield from guess_commands(command.words)
    elif program in PROGRAMS_WITH_COMMAND_OPTIONS:
        if program in ("make", "gmake"):
            check_makefile(command)
        yield from guess_option_texts(command.words)


def build_text_command(word: ShellWord) -> InnerCommand:
    if not word.is_literal:
        raise UnreadableCommandError("it runs a text that is only known at run time")
    return InnerCommand(text=word.text)


def read_stdin(command: SimpleCommand) -> InnerCommand:
    """Read the commands that a shell gets on stdin."""
    text = command.stdin_text()
    if text is None:
        raise UnreadableCommandError(f"{command.program} reads commands that are not in the line")
    return build_text_command(text)


def read_shell(command: SimpleCommand) -> Iterator[InnerCommand]:
    """Read the text of bash -c TEXT, or of stdin. Scripts in files are not read."""
    is_script = takes_value = reads_stdin = False
    for word in command.words:
        if takes_value:
            takes_value = False
            continue
        if not word.is_literal and (word.may_be_option() or not is_script):
            raise UnreadableCommandError("it runs a text that is only known at run time")
        text = word.text
        if text.startswith(("-", "+")) and text not in ("-", "--"):
            if re.fullmatch(r"--(rcfile|init-file)", text) or re.match(
                r"-\w*i|--login|-\w*l", text
            ):
                raise UnreadableCommandError("it reads start-up files of a shell")
            if text in ("--help", "--version"):
                return
            takes_value = not text.startswith("--") and text[-1] in "oO"
            if text.startswith("--command"):
                is_script = True
                if "=" in text:
                    yield build_text_command(ShellWord(text.partition("=")[2]))
                    return
            elif not text.startswith("--"):
                is_script = is_script or ("c" in text and text.startswith("-"))
                reads_stdin = reads_stdin or "s" in text
        elif text in ("-", "--"):
            continue
        elif is_script:
            yield build_text_command(word)
            return
        elif reads_stdin or text == "/dev/stdin":
            break
        else:
            raise UnreadableCommandError(f"the text of the script {text!r} is not in the line")
    if is_script:
        raise UnreadableCommandError("the text a shell runs is missing")
    yield read_stdin(command)


def read_wrapper(command: SimpleCommand) -> Iterator[InnerCommand]:
    wrapper = WRAPPER_OPTIONS[command.program]
    try:
        options = parse_options(wrapper, command.words)
    except UnknownOptionError:
        yield from guess_literal_commands(command.words)
        return
    if options.names & (wrapper.without_command | {"help", "version"}):
        return
    rest = options.rest
    for word in rest[: wrapper.positional]:
        if word.may_split:
            raise UnreadableCommandError("which program it runs is only known at run time")
    rest = rest[wrapper.positional :]
    assignments = []
    while wrapper.takes_assignments and rest and "=" in rest[0].text:
        name, _, value = rest[0].text.partition("=")
        assignments.append((name, ShellWord(value, rest[0].may_split)))
        rest = rest[1:]
    if wrapper.takes_assignments and rest and rest[0].text == "--":
        rest = rest[1:]
    yield from read_wrapped_command(command, options, rest, tuple(assignments))


def read_wrapped_command(
    command: SimpleCommand,
    options: ParsedOptions,
    rest: tuple[ShellWord, ...],
    assignments: tuple[tuple[str, ShellWord], ...],
) -> Iterator[InnerCommand]:
    program = command.program
    if program == "env" and (text := options.get("S", "split-string")) is not None:
        if not text.is_literal or re.search(r"[\\$#]", text.text):
            raise UnreadableCommandError("env splits a text that cannot be read")
        yield InnerCommand(text=f"env {text.text} {join_words(rest)}")
    elif program == "flock" and (text := options.get("c", "command")) is not None:
        yield build_text_command(text)
    elif program == "flock" and rest and rest[0].text in ("-c", "--command") and len(rest) > 1:
        yield build_text_command(rest[1])
    elif program == "script":
        if (text := options.get("c", "command")) is None:
            raise UnreadableCommandError("script starts a shell")
        yield build_text_command(text)
    elif program == "watch" and not options.names & {"x", "exec"}:
        if rest:
            yield InnerCommand(text=" ".join(build_text_command(word).text or "" for word in rest))
    elif program == "xargs":
        yield read_xargs(options, rest)
    elif (program == "sudo" and options.names & {"s", "i", "shell", "login"} and not rest) or (
        program == "doas" and "s" in options.names
    ):
        yield read_stdin(command)
    elif program in ("unshare", "busybox", "chroot") and not rest:
        if program != "busybox":
            yield read_stdin(command)
    elif program == "strace" and (variable := options.get("E")) is not None:
        name, _, value = variable.text.partition("=")
        yield InnerCommand(words=rest, assignments=((name, ShellWord(value)),))
    elif rest:
        yield InnerCommand(words=rest, assignments=assignments)
    elif assignments and program == "env":
        return


def read_xargs(options: ParsedOptions, rest: tuple[ShellWord, ...]) -> InnerCommand:
    """xargs appends words from its input, or puts them in place of a placeholder."""
    if not rest:
        return InnerCommand(words=(ShellWord("echo"), ANY_WORDS))
    placeholder = options.get("I", "replace", "i")
    if placeholder is None and not options.names & {"i", "replace"}:
        return InnerCommand(words=(*rest, ANY_WORDS))
    text = placeholder.text if placeholder is not None else "{}"
    words = tuple(ShellWord(word.text.replace(text, UNKNOWN), word.may_split) for word in rest)
    return InnerCommand(words=words)


def read_su(command: SimpleCommand) -> Iterator[InnerCommand]:
    """Read the text after -c of su and runuser, or the command of runuser -u."""
    try:
        options = parse_options(WRAPPER_OPTIONS[command.program], command.words, permute=True)
    except UnknownOptionError:
        yield from guess_literal_commands(command.words)
        return
    if options.names & {"help", "version", "h", "V"}:
        return
    shell = options.get("s", "shell")
    if shell is not None and get_base_name(shell.text) not in SHELLS:
        raise UnreadableCommandError(f"{command.program} starts {shell}")
    text = options.get("c", "command", "session-command")
    if text is not None:
        yield build_text_command(text)
    elif command.program == "runuser" and options.get("u", "user") is not None:
        unpermuted = parse_options(WRAPPER_OPTIONS["runuser"], command.words)
        yield InnerCommand(words=unpermuted.rest)
    else:
        yield read_stdin(command)


def read_ssh(command: SimpleCommand) -> Iterator[InnerCommand]:
    """Read the remote command: ssh joins its words, and a shell on the remote host parses them."""
    try:
        first = parse_options(SSH_OPTIONS, command.words)
        second = parse_options(SSH_OPTIONS, first.rest[1:])
    except UnknownOptionError:
        yield from guess_literal_commands(command.words)
        return
    for name, value in (*first.values, *second.values):
        match = re.match(r"(?i)\s*(\w*command)\s*[= ]\s*(.*)", value.text, re.DOTALL)
        if name == "o" and match and match[2].lower() != "none":
            yield build_text_command(ShellWord(match[2], value.may_split))
    if (first.names | second.names) & set("GOQVWN") or not first.rest:
        return
    if second.rest:
        yield InnerCommand(
            text=" ".join(build_text_command(word).text or "" for word in second.rest)
        )
    else:
        yield read_stdin(command)


def read_eval(command: SimpleCommand) -> Iterator[InnerCommand]:
    words = command.words[1:] if command.words[:1] == (ShellWord("--"),) else command.words
    if words:
        yield InnerCommand(text=" ".join(build_text_command(word).text or "" for word in words))


def read_source(command: SimpleCommand) -> Iterator[InnerCommand]:
    words = command.words[1:] if command.words[:1] == (ShellWord("--"),) else command.words
    if words and words[0].text in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        yield read_stdin(command)
    elif words:
        raise UnreadableCommandError(f"the text of the script {words[0]} is not in the line")


def read_trap(command: SimpleCommand) -> Iterator[InnerCommand]:
    words = command.words[1:] if command.words[:1] == (ShellWord("--"),) else command.words
    if len(words) > 1 and words[0].text not in ("-", "", "-p", "-l"):
        yield build_text_command(words[0])
    elif any(not word.is_literal for word in words):
        raise UnreadableCommandError("it runs a text that is only known at run time")


def read_find(command: SimpleCommand) -> Iterator[InnerCommand]:
    inner: list[ShellWord] | None = None
    for word in command.words:
        if inner is None and word.text in ("-exec", "-execdir", "-ok", "-okdir"):
            inner = []
        elif inner is None and (word.may_split or word.may_equal("-exec")):
            raise UnreadableCommandError("an option of find is only known at run time")
        elif inner is not None and (
            word.text == ";" or (word.text == "+" and inner[-1:] == [FOUND_PATH])
        ):
            yield InnerCommand(words=tuple(inner))
            inner = None
        elif inner is not None:
            inner.append(ShellWord(word.text.replace("{}", FOUND_PATH.text), word.may_split))
    if inner:
        yield InnerCommand(words=tuple(inner))


# What find puts in place of {}: a path with the starting directory, so never an option.
FOUND_PATH = ShellWord(f"./{UNKNOWN}")


def read_parallel(command: SimpleCommand) -> Iterator[InnerCommand]:
    words = list(command.words)
    end = next(
        (at for at, word in enumerate(words) if re.match(r":{3,4}\+?$", word.text)), len(words)
    )
    start = 0
    while start < end and words[start].text.startswith("-"):
        takes_value = re.fullmatch(
            r"-[jNnLPSaCdEIsX]|--(jobs|colsep|max-args|arg-file|joblog)", words[start].text
        )
        start += 2 if takes_value else 1
    if start >= end:
        raise UnreadableCommandError("parallel reads commands that are not in the line")
    text = " ".join(build_text_command(word).text or "" for word in words[start:end])
    marked = re.sub(r"\{[^{}\s,]*\}", "$PARALLEL", text)
    yield InnerCommand(text=f"{marked} $PARALLEL" if marked == text else marked)
    yield from guess_commands(words[:end])


def read_ripgrep(command: SimpleCommand) -> Iterator[InnerCommand]:
    """rg runs the program of --pre for every file, and that of --hostname-bin once."""
    for at, word in enumerate(command.words):
        name, equals, value = word.text.partition("=")
        if word.may_split or (not word.is_literal and word.text.startswith(("-", UNKNOWN))):
            raise UnreadableCommandError("an option of rg is only known at run time")
        if name in ("--pre", "--hostname-bin"):
            program = (
                ShellWord(value) if equals else next(iter(command.words[at + 1 :]), ShellWord(""))
            )
            if program.text:
                yield InnerCommand(words=(program, ANY_WORDS))


def read_git(command: SimpleCommand) -> Iterator[InnerCommand]:
    """Settings given with -c can contain commands, and so can arguments of some subcommands."""
    words = command.words
    for at, word in enumerate(words):
        setting = words[at + 1] if word.text == "-c" and at + 1 < len(words) else word
        if setting is not word or word.text.startswith(
            ("--config-env", "--exec-path=", "--upload-pack")
        ):
            if not setting.is_literal:
                raise UnreadableCommandError("a setting of git is only known at run time")
            yield from guess_commands_in_text(setting.text.partition("=")[2])
    if any(word.text in GIT_RUNNERS for word in words[:6]):
        yield from guess_commands(words)


def check_builtin(command: SimpleCommand) -> None:
    """Refuse builtins that change what later words run, or that run code themselves."""
    letters = {
        "alias": "",
        "bind": "x",
        "compgen": "CFW",
        "complete": "CF",
        "enable": "f",
        "hash": "p",
    }
    wanted = letters.get(command.program, "C")
    for word in command.words:
        is_option = word.text.startswith("-") and any(letter in word.text for letter in wanted)
        if is_option or not word.is_literal or (command.program == "alias" and "=" in word.text):
            raise UnreadableCommandError(f"{command.program} changes what later commands run")


def check_makefile(command: SimpleCommand) -> None:
    """Refuse a makefile from stdin, which can run anything."""
    for word in command.words:
        if re.fullmatch(r"(-f|--\w+=)?(-|/dev/stdin|/dev/fd/.*|/proc/self/fd/.*)", word.text):
            raise UnreadableCommandError(f"{command.program} reads a makefile from its input")


def check_declaration(command: SimpleCommand) -> Iterator[InnerCommand]:
    """Refuse references to other variables, which hide which variable is set."""
    for word in command.words:
        if re.match(r"-\w*n", word.text) and command.program != "export":
            raise UnreadableCommandError(f"{command.program} -n makes a name for another variable")
    return iter(())


def check_interpreter(command: SimpleCommand) -> None:
    """Refuse code from stdin, unless it is a here-document in the line."""
    for word in command.words:
        if word.text in ("-", "/dev/stdin"):
            break
        if not word.text.startswith("-") or re.match(
            r"-\w*[cemE]|--(version|help|eval|print)", word.text
        ):
            return
        if word.text in ("-V", "-v", "-h", "-p"):
            return
    check_stdin(command)


def read_schedule(command: SimpleCommand) -> Iterator[InnerCommand]:
    """at and batch run their input later. crontab is refused: its table has its own format."""
    if any(word.text in ("-l", "-d", "-r", "-c", "-V") for word in command.words):
        return
    if command.program == "crontab":
        raise UnreadableCommandError("crontab changes what runs later")
    yield read_stdin(command)


def check_stdin(command: SimpleCommand) -> None:
    text = command.stdin_text()
    if text is None or not text.is_literal:
        raise UnreadableCommandError(f"{command.program} reads a program that is not in the line")


COMMAND_READERS: dict[str, Callable[[SimpleCommand], Iterator[InnerCommand]]] = {
    ".": read_source,
    "at": read_schedule,
    "batch": read_schedule,
    "crontab": read_schedule,
    "declare": check_declaration,
    "eval": read_eval,
    "find": read_find,
    "local": check_declaration,
    "parallel": read_parallel,
    "rg": read_ripgrep,
    "runuser": read_su,
    "source": read_source,
    "ssh": read_ssh,
    "su": read_su,
    "trap": read_trap,
    "typeset": check_declaration,
}


def join_words(words: Sequence[ShellWord]) -> str:
    return shlex.join(build_text_command(word).text or "" for word in words)
