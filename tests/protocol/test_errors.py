"""Errors: each class has its HTTP code, and clients see only texts meant for them."""

import logging

import pytest

from crabtalk import protocol
from crabtalk.protocol import (
    BadRequestError,
    ConflictError,
    GoneError,
    InternalError,
    NotFoundError,
    RequestError,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedError,
    to_error_message,
    wire,
)

CODES: dict[type[RequestError], int] = {
    BadRequestError: 400,
    UnauthorizedError: 401,
    NotFoundError: 404,
    ConflictError: 409,
    GoneError: 410,
    TooLargeError: 413,
    TooManyRequestsError: 429,
    InternalError: 500,
    UnsupportedError: 501,
    UnavailableError: 503,
}


def raised_error(error: Exception) -> Exception:
    """The error with a traceback, as a handler gets it."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.req("wire.errors.http_codes")
@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_a_request_error_has_its_code_and_its_text(kind: type[RequestError], code: int) -> None:
    message = to_error_message(kind("there is no agent 'zoë': list them"))
    assert message == wire.ErrorMsg(code=code, message="there is no agent 'zoë': list them")


@pytest.mark.req("wire.errors.http_codes")
def test_these_are_all_the_errors_and_all_the_codes() -> None:
    public = [getattr(protocol, name) for name in protocol.__all__]
    kinds = {kind for kind in public if isinstance(kind, type) and issubclass(kind, RequestError)}
    assert kinds == {RequestError, *CODES}
    assert sorted(kind.code for kind in kinds - {RequestError}) == [
        *(400, 401, 404, 409, 410, 413, 429),
        *(500, 501, 503),
    ]


def test_a_plain_request_error_is_500_with_its_text() -> None:
    message = to_error_message(RequestError("the disk is full"))
    assert message == wire.ErrorMsg(code=500, message="the disk is full")


def test_a_subclass_of_an_error_keeps_its_code() -> None:
    class NoSuchAgentError(NotFoundError):
        pass

    assert to_error_message(NoSuchAgentError("who?")) == wire.ErrorMsg(code=404, message="who?")


def test_a_request_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    kinds: list[type[RequestError]] = [RequestError, *CODES]
    for kind in kinds:
        to_error_message(raised_error(kind("a sentence")))
    assert caplog.records == []


@pytest.mark.req("wire.errors.http_codes")
@pytest.mark.parametrize("kind", [ValueError, KeyError, OSError, ConnectionError, TimeoutError])
def test_an_unexpected_exception_is_500_with_its_type_and_not_its_text(
    kind: type[Exception],
) -> None:
    message = to_error_message(raised_error(kind("sk-secret in /home/bo")))
    assert message.code == 500
    assert kind.__name__ in message.message
    assert "secret" not in message.message
    assert "/home" not in message.message


def test_an_unexpected_exception_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = raised_error(ValueError("sk-secret"))
    to_error_message(error)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info == (ValueError, error, error.__traceback__)
    assert "ValueError: sk-secret" in caplog.text
    assert "in raised" in caplog.text


def test_a_text_that_utf8_cannot_encode_still_reaches_the_client() -> None:
    message = to_error_message(NotFoundError("no file called \udcff.txt"))
    assert message.code == 404
    assert message.message == "no file called ?.txt"


def test_a_group_of_one_is_treated_as_its_member() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [NotFoundError("no such thing")])])
    assert to_error_message(group) == wire.ErrorMsg(code=404, message="no such thing")


def test_a_group_of_several_is_an_internal_error() -> None:
    group = ExceptionGroup("tasks", [NotFoundError("one"), NotFoundError("two")])
    assert to_error_message(group).code == 500
