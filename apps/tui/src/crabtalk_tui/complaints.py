"""Complaints: what went wrong, as one sentence that ends in what to do next."""


class CommandError(Exception):
    """What a command finds it cannot do. Says so in such a sentence."""


def complaint(error: Exception) -> str | None:
    """None for what is a fault of ours, and deserves a traceback."""
    from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError
    from crabtalk.memory import StoreError
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
        case CommandError() | StoreError() | OSError():
            return str(error)
    return None
