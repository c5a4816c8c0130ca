"""Reads AWS credentials: keys in the environment, or a profile of the AWS tools."""

import importlib
from collections.abc import Mapping

from crabtalk.model.bedrock.sigv4 import AwsCredentials
from crabtalk.model.errors import ApiError, ErrorKind

NO_CREDENTIALS = (
    "no AWS credentials; set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)


def read_region(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""


def read_credentials(environ: Mapping[str, str]) -> AwsCredentials:
    """Return the credentials in the environment, else those of a profile, single sign-on or role.

    The latter may access files and the network, so call this in a thread. Raises ApiError.
    """
    if bearer := environ.get("AWS_BEARER_TOKEN_BEDROCK"):
        return AwsCredentials(bearer=bearer)
    access, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if access and secret:
        return AwsCredentials(access, secret, environ.get("AWS_SESSION_TOKEN", ""))
    return read_profile_credentials(environ.get("AWS_PROFILE"))


def read_profile_credentials(profile: str | None) -> AwsCredentials:
    try:
        session = importlib.import_module("botocore.session")
        exceptions = importlib.import_module("botocore.exceptions")
    except ImportError:
        raise ApiError(
            ErrorKind.CONFIG,
            f"{NO_CREDENTIALS}; profiles, single sign-on and roles need crabtalk[bedrock]",
        ) from None
    try:
        credentials = session.Session(profile=profile).get_credentials()
        frozen = credentials.get_frozen_credentials() if credentials is not None else None
    except exceptions.BotoCoreError as error:
        raise ApiError(ErrorKind.CONFIG, f"no AWS credentials: {error}") from None
    if frozen is None:
        raise ApiError(ErrorKind.CONFIG, NO_CREDENTIALS)
    return AwsCredentials(frozen.access_key, frozen.secret_key, frozen.token or "")
