"""Complaints: what went wrong, as one sentence that ends in what to do next."""


class CrabupError(Exception):
    """What a command finds it cannot do. Says so in such a sentence."""


def explain_error(error: Exception) -> str | None:
    """None for what is a fault of ours, and deserves a traceback."""
    from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError
    from crabtalk.service import ComponentError, UnitError

    match error:
        case ServerError():
            return error.message
        case ConnectionClosedError():
            return f"the daemon went away ({error}); `crabup ps` says whether it runs"
        case UnexpectedReplyError():
            return f"{error}; `crabup update` brings all programs to the same version"
        case TimeoutError():
            return "the daemon did not answer in time; `crabup ps` says how it is"
        case CrabupError() | ComponentError() | UnitError() | OSError():
            return str(error)
    return None
