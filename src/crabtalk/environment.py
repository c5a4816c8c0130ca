"""Environments of child processes: a few harmless variables and those the caller names.

The daemon's own environment holds provider keys. A command or an MCP server that inherited it could
print them, so each child gets `build_child_environment` instead. `hide_environment` closes the
other way to those keys, /proc/PID/environ. This module starts no process.
"""

import os
import sys
from collections.abc import Iterable, Mapping

# Variables by which programs find other programs, the user's files, a language and a terminal.
BASIC_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "TMPDIR",
)
LOCALE_PREFIX = "LC_"
# macOS looks up the encoding of a user's texts, and does so slowly when this is missing.
MACOS_VARIABLES = ("__CF_USER_TEXT_ENCODING",)
# How programs reach the network. Programs read proxies in upper or lower case.
NETWORK_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)
# For children that run our own interpreter: without these it may not find its files or this
# package.
INTERPRETER_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
PR_SET_DUMPABLE = 4


def build_child_environment(
    names: Iterable[str] = (),
    added: Mapping[str, str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the basic variables of `environ`, those in `names` that are set, and `added`.

    Variables in `added` win.
    """
    wanted = {*BASIC_VARIABLES, *names, *(MACOS_VARIABLES if sys.platform == "darwin" else ())}
    inherited = {
        name: value
        for name, value in environ.items()
        if name in wanted or name.startswith(LOCALE_PREFIX)
    }
    return {**inherited, **(added or {})}


def hide_environment() -> bool:
    """Make this process's /proc/PID/environ and memory unreadable for others of the same user.

    Returns whether the system did so. It also ends core dumps and debuggers that attach without
    being root. It does not stop root. Children that run another program are not affected.
    """
    if sys.platform != "linux":
        return False
    try:
        import _ctypes  # not ctypes, which takes twice the memory for this one call

        this_program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # dlopen(3) takes NULL
        prctl = _ctypes.dlsym(this_program, "prctl")
        return bool(_ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0)
    except (ImportError, AttributeError, OSError):  # an interpreter or a C library without it
        return False
