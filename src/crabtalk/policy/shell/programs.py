"""Programs that run other programs or code, grouped by how they do it.

For programs with too many options to know in detail, every word that could start a command is a
guess. A guess can only forbid a line, never allow it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .commands import ShellWord, UnreadableCommandError, get_base_name, split_name_set

MAX_GUESSED_WORDS = 40

SHELLS = split_name_set("ash bash dash fish hush ksh ksh93 lksh mksh rbash sh yash zsh")
# Programs that run code in their own language, from stdin if there is no argument.
INTERPRETERS = split_name_set(
    "bun deno irb julia lua luajit node nodejs osascript perl php python python2 "
    "python3 pypy pypy3 R Rscript ruby tclsh wish guile gdb ghci ipython sqlite3 bc"
)
STDIN_PROGRAMS = split_name_set("ed ex expect")
GUESSED_PROGRAMS = split_name_set(
    "abduco bubblewrap bwrap caffeinate capsh catchsegv cgexec choom chpst chronic "
    "cpulimit daemonize dbus-run-session distrobox dtach dumb-init eatmydata entr "
    "envdir envuidgid fakechroot fakeroot fdmove firejail gdbserver gosu gpg-agent "
    "heaptrack hyperfine i386 ifne linux32 linux64 lldb ltrace machinectl mosh newgrp "
    "nix-shell npx nq nsenter numactl parallel-ssh pee perf pkexec pnpx prlimit proot "
    "proxychains proxychains4 pssh reptyr rlwrap rr run-parts run0 s6-setuidgid "
    "screen sem setarch setuidgid sg softlimit ssh-agent sshpass start-stop-daemon "
    "su-exec systemd-inhibit systemd-run tini tmux toolbox torify torsocks tsocks tsp "
    "unbuffer uvx valgrind winpty x86_64 xvfb-run"
)
# These run a program with some subcommands only; the arguments of others are names of packages.
PACKAGE_MANAGERS = split_name_set(
    "aws buildah bundle conda direnv docker flatpak kubectl lxc mamba micromamba mise "
    "nerdctl nix npm pdm pipenv pipx pixi pnpm podman poetry rye uv vagrant yarn"
)
MANAGER_RUN_WORDS = split_name_set(
    "compose container create debug develop dlx exec explore run shell ssh tool x "
    "--command --run -c run-script"
)
# Programs with options that take a command.
PROGRAMS_WITH_COMMAND_OPTIONS = split_name_set(
    "tar bsdtar rsync sort split zip man less git scp sftp curl wget cpio mutt "
    "openssl nc ncat netcat cargo go rustup cmake ctest gcc cc clang g++ pip pip3 "
    "journalctl systemctl dpkg apt apt-get vim vi view vimdiff nvim ex emacs nano ssh "
    "fzf bat ctags gh hg svn dstat tcpdump wall ansible puppet logrotate "
    "logsave msgattrib msgfilter xdg-open xdotool zathura screen docker make gmake"
)
GIT_RUNNERS = split_name_set(
    "bisect config difftool filter-branch for-each-repo mergetool rebase submodule send-email"
)
BUILTIN_RUNNERS = split_name_set("alias bind compgen complete enable hash mapfile readarray")
BUILTINS = split_name_set(
    ". : [ alias bind builtin command coproc eval exec export set source test trap"
)


@dataclass(frozen=True, slots=True)
class InnerCommand:
    """Either the words of a command, or a text for a shell to read."""

    words: tuple[ShellWord, ...] = ()
    text: str | None = None
    assignments: tuple[tuple[str, ShellWord], ...] = ()
    is_guess: bool = False
    starts_shell: bool = False


def guess_literal_commands(words: Sequence[ShellWord]) -> Iterator[InnerCommand]:
    if any(not word.is_literal for word in words):
        raise UnreadableCommandError("which program it runs is only known at run time")
    yield from guess_commands(words)


def guess_commands(words: Sequence[ShellWord]) -> Iterator[InnerCommand]:
    """Yield a guess for every word that could be the start of a command."""
    if len(words) > MAX_GUESSED_WORDS:
        raise UnreadableCommandError(
            f"it has more than {MAX_GUESSED_WORDS} words to a program that runs others"
        )
    for at, word in enumerate(words):
        if not word.is_literal:
            continue
        if re.fullmatch(r"[\w./+-]+", word.text) and not word.text.startswith("-"):
            name = get_base_name(word.text)
            if name not in BUILTINS:
                yield InnerCommand(
                    words=tuple(words[at:]), is_guess=True, starts_shell=name in SHELLS
                )
    yield from guess_option_texts(words, all_words=True)


def guess_option_texts(
    words: Sequence[ShellWord], all_words: bool = False
) -> Iterator[InnerCommand]:
    """Yield guesses in texts with spaces that follow an option or an equals sign."""
    for at, word in enumerate(words):
        follows_option = at > 0 and words[at - 1].text.startswith("-")
        if word.is_literal and (all_words or follows_option or re.match(r"[-+:]|\w+=", word.text)):
            yield from guess_commands_in_text(word.text)


def guess_commands_in_text(text: str) -> Iterator[InnerCommand]:
    """Yield as guesses the text itself and each part after a sign such as = or !."""
    readings = {text} | {
        text[match.end() :] for match in re.finditer(r"[=!|]|EXEC:|SYSTEM:", text[:200])
    }
    for reading in readings:
        if re.match(r"\s*[\w./]+\s+\S", reading) or (
            reading != text and re.fullmatch(r"[\w./]+", reading)
        ):
            yield InnerCommand(text=reading, is_guess=True)
