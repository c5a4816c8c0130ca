"""Environment variables that a tool call may not set, because they change which code runs.

A command is judged by its text. A variable that loads a library into it or makes it start another
program would bypass every rule and every approval of that text. This is a list of known names, not
a sandbox: it only makes sure that the text shows what the command runs.
"""

import re

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Matched in upper case. Programs of each family read code, options or program names from these.
REFUSED_PREFIXES = (
    *("LD_", "DYLD_", "GCONV_", "GLIBC_", "MALLOC_"),  # the loader and the C library
    *("BASH", "ZSH", "KSH"),  # BASH_ENV, BASH_FUNC_…, BASHOPTS
    *("PYTHON", "PERL", "RUBY", "GEM_", "BUNDLE_", "LUA_", "PHP", "R_", "JULIA_", "GUILE_", "ERL_"),
    *(
        "NPM_",
        "YARN_",
        "PNPM_",
        "PIP_",
        "UV_",
        "CARGO_",
        "RUSTC",
        "RUSTDOC",
        "RUSTUP_",
        "CMAKE_",
        "PKG_CONFIG",
    ),
    *("DOTNET_", "CORECLR_", "COR_", "OPENSSL_", "SUDO_", "SYSTEMD_", "LESS", "HG", "SVN_", "VIM"),
    "GIT_",
)
REFUSED_NAMES = frozenset(
    {
        # Locations of programs and their settings.
        *("PATH", "HOME", "SHELL", "CDPATH", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
        *("XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR"),
        # The shell.
        *("ENV", "IFS", "PS0", "PS1", "PS2", "PS3", "PS4", "PROMPT_COMMAND", "SHELLOPTS"),
        *("EXECIGNORE", "GLOBIGNORE", "INPUTRC", "FPATH", "FCEDIT", "HISTFILE", "MAILPATH"),
        # The C library and the terminal.
        *("LOCPATH", "NLSPATH", "HOSTALIASES", "RES_OPTIONS", "GETCONF_DIR", "TERMINFO", "TERMCAP"),
        *("TERMINFO_DIRS",),
        # Interpreters and virtual machines.
        *("NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE", "CLASSPATH", "JAVA_HOME"),
        *("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "JAVA_OPTS", "MAVEN_OPTS"),
        *("GRADLE_OPTS", "TCLLIBPATH", "EMACSLOADPATH", "AWKPATH", "AWKLIBPATH", "VIRTUAL_ENV"),
        # Programs that start a program or read a file of settings.
        *("EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "SSH_ASKPASS", "RSYNC_RSH"),
        *("RSYNC_CONNECT_PROG", "CVS_RSH", "TAR_OPTIONS", "EXINIT", "MYVIMRC", "FZF_DEFAULT_OPTS"),
        *("RIPGREP_CONFIG_PATH", "GREP_OPTIONS", "PSQLRC", "SQLITERC", "SCREENRC", "TMUX_CONF"),
        *("FZF_DEFAULT_COMMAND", "BAT_PAGER", "DELTA_PAGER", "MANOPT", "DOCKER_HOST"),
        *("DOCKER_CONFIG", "KUBECONFIG", "AWS_CONFIG_FILE", "CURL_HOME", "WGETRC"),
        # Compilers and their drivers.
        *("CC", "CXX", "CPP", "LD", "AR", "AS", "MAKE", "MAKEFLAGS", "MAKEFILES", "GNUMAKEFLAGS"),
        *("GOFLAGS", "GOROOT", "GOPATH", "GOENV", "GOTOOLCHAIN", "GCC_EXEC_PREFIX"),
        *("COMPILER_PATH", "CONFIG_SITE"),
    }
)
# Most variables of git can run a program; these only set who commits and when.
ALLOWED_NAMES = re.compile(r"GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)\Z|GIT_TERMINAL_PROMPT\Z")


def is_variable_name(name: str) -> bool:
    """Whether this is a valid name of a shell variable. Exported functions have other names."""
    return VARIABLE_NAME.match(name) is not None


def can_change_programs(name: str) -> bool:
    """Whether a variable of this name may load code into a command or start another program."""
    if not is_variable_name(name):
        return True
    upper = name.upper()
    if ALLOWED_NAMES.match(upper):
        return False
    return upper in REFUSED_NAMES or upper.startswith(REFUSED_PREFIXES)
