"""Recognizes git commands that only read.

Git runs programs that a repository's own settings name (fsmonitor, filters, textconv, pagers). A
repository that was unpacked from an archive can contain such settings, so they are checked too.
"""

import re
from collections.abc import Sequence
from pathlib import Path

MAX_SETTINGS_BYTES = 64 * 1024  # bytes of a settings file
MAX_INDEX_BYTES = 16 * 1024 * 1024
RUNS_PROGRAMS = re.compile(
    rb"(?i)fsmonitor|textconv|external|pager|hookspath|\binclude|sshcommand|command|filter|clean|process"
    rb"|editor|askpass|helper|gpg|program|alias|difftool|mergetool|worktree\s*=|\[\s*diff|tool"
)
COMMON_OPTIONS = (
    r"--oneline|--stat|--shortstat|--numstat|--name-only|--name-status|--no-color|--color(=\w+)?|--graph"
    r"|--all|--decorate(=\w+)?|--no-decorate|--summary|--no-merges|--merges|--reverse|--first-parent"
    r"|-\d+|-n|-n\d+|--max-count=\d+|--since=[^/]*|--until=[^/]*|--after=[^/]*|--before=[^/]*"
    r"|--author=[^/]*|--grep=.*|-i|--(pretty|format)=.*|--date=[\w:%-]+|-p|--patch|--no-patch|-s|-u"
    r"|-U\d+|--unified=\d+|-w|-b|--ignore-all-space|--ignore-space-change|--word-diff(=\w+)?"
    r"|--color-words|--cached|--staged|--minimal|--patience|--histogram|-M|-C|--find-renames"
    r"|--diff-filter=\w+|--no-ext-diff|--no-textconv|--no-renames|--relative|-z|--raw|--follow"
    r"|--abbrev(=\d+)?|--abbrev-commit|--full-index|--quiet|--exit-code|--check|--topo-order|--"
)
SUBCOMMANDS: dict[str, str] = {
    "blame": r"-L\d+,\d+|-w|-s|-e|-l|-t|--date=\w+|--porcelain|--",
    "describe": r"--tags|--always|--dirty|--long|--all|--abbrev=\d+|--exact-match",
    "diff": COMMON_OPTIONS,
    "log": COMMON_OPTIONS,
    "ls-files": r"-o|-m|-d|-c|-s|-z|--others|--modified|--deleted|--cached|--stage"
    r"|--exclude-standard|--",
    "ls-tree": r"-r|-l|-t|-d|-z|--name-only|--full-tree|--",
    "merge-base": r"--all|--is-ancestor",
    "reflog": r"-\d+|-n|show",
    "rev-list": r"--count|--all|--max-count=\d+|-\d+|-n|--left-right|--no-merges|--",
    "rev-parse": r"--show-toplevel|--abbrev-ref|--short(=\d+)?|--verify|--git-dir"
    r"|--is-inside-work-tree|--show-prefix|--quiet|-q|HEAD",
    "shortlog": r"-s|-n|-e|-sn|-sne|--all|--no-merges",
    "show": COMMON_OPTIONS,
    "status": r"-s|-b|-sb|-bs|-u|-uno|-uall|-unormal|--short|--branch|--porcelain(=v?\d)?|--long"
    r"|--ignored|--untracked-files(=\w+)?|-z|-v|--show-stash|--ahead-behind|--no-renames|--",
}
# Subcommands that change something if a name follows: only these words may follow.
LISTING_SUBCOMMANDS: dict[str, str] = {
    "branch": r"-a|-r|-v|-vv|-av|-avv|-rv|--all|--remotes|--list|-l|--show-current|--verbose"
    r"|--no-color|--color(=\w+)?|--sort=[\w:-]+|--format=.*|--merged|--no-merged",
    "remote": r"-v|--verbose",
    "stash": r"list",
    "tag": r"-l|--list|-n\d*|--sort=[\w:-]+",
    "worktree": r"list",
}


def is_harmless_git(words: Sequence[str], cwd: Path) -> bool:
    words = [word for number, word in enumerate(words) if number or word != "--no-pager"]
    if not words:
        return False
    name, rest = words[0], words[1:]
    if name in LISTING_SUBCOMMANDS:
        is_reading = all(re.fullmatch(LISTING_SUBCOMMANDS[name], word) for word in rest)
        if name in ("stash", "worktree") and not rest:
            return False
    elif name in SUBCOMMANDS:
        is_reading = all(
            not word.startswith("-") or re.fullmatch(SUBCOMMANDS[name], word) for word in rest
        )
        if name == "reflog" and any(word in ("expire", "delete", "drop", "write") for word in rest):
            return False
    else:
        return False
    return is_reading and has_plain_settings(cwd)


def has_plain_settings(cwd: Path) -> bool:
    """Whether the repository that git would use names no program in its own settings."""
    for directory in (cwd, *cwd.parents):
        if (directory / "HEAD").exists() and (directory / "objects").exists():
            return False  # a bare repository, or the inside of one
        git = directory / ".git"
        if git.is_file():
            match = re.match(r"gitdir: (.+)\n?$", read_limited(git).decode("utf-8", "replace"))
            if match is None:
                return False
            git = directory / match[1]
        if git.is_dir():
            common = git
            if (git / "commondir").is_file():
                common = git / read_limited(git / "commondir").decode("utf-8", "replace").strip()
            files = (
                git / "config",
                git / "config.worktree",
                common / "config",
                common / "config.worktree",
            )
            return not has_nested_repositories(git / "index") and not any(
                RUNS_PROGRAMS.search(read_limited(file)) for file in files if file.exists()
            )
    return True


def has_nested_repositories(index: Path) -> bool:
    """Whether there are submodules, which git reads with their own settings. Their mode in the
    index is 0160000."""
    return index.exists() and b"\0\0\xe0\0" in read_limited(index, MAX_INDEX_BYTES)


def read_limited(path: Path, limit: int = MAX_SETTINGS_BYTES) -> bytes:
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} is larger than expected")
    return data
