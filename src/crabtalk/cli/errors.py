"""Errors of commands: one sentence that ends in what to do next."""

import re

# Wordings of vendors and model servers. The daemon passes on their sentence without a code.
CONTEXT_OVERFLOW = re.compile(
    r"context[ _](?:size|length|limit|window)|too long|too many input tokens|input token count",
    re.IGNORECASE,
)


class CommandError(Exception):
    """A command cannot do what was asked. The message says why and what to do next."""


def explain_error(error: Exception) -> str | None:
    """Return the sentence for an expected error, or None for a bug, which deserves a traceback."""
    from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError
    from crabtalk.memory import MemoryStoreError
    from crabtalk.protocol import FrameTooLargeError

    match error:
        case ServerError(code=501):
            return f"{error.message}; start a newer crabtalkd"
        case ServerError():
            return error.message
        case ConnectionClosedError():
            return f"the daemon went away ({error}); `crabtalkd status` says whether it runs"
        case UnexpectedReplyError():
            return f"{error}; install the same version of crabtalk and crabtalkd"
        case FrameTooLargeError():
            return f"{error}; send less at a time"
        case TimeoutError():
            return "the daemon did not answer in time; `crabtalkd status` says how it is"
        case UnicodeEncodeError(reason="surrogates not allowed"):  # from words on a command line
            return "what was typed is not text in UTF-8; leave out what is not"
        case CommandError() | MemoryStoreError() | OSError():
            return str(error)
    return None


def is_context_overflow(sentence: str) -> bool:
    """Whether a model refused a request because it exceeds the model's context."""
    return CONTEXT_OVERFLOW.search(sentence) is not None
