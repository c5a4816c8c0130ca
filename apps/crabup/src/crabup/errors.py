"""Error messages: each is one sentence that ends in what to do next."""


class CrabupError(Exception):
    """A command cannot do what it was asked to. The text says what to do next."""


def explain_error(error: Exception) -> str | None:
    """None for an error in crabup itself, which needs a traceback."""
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
