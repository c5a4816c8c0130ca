"""Signatures, against AWS's published examples and against botocore for everything else."""

import datetime
import string
from unittest.mock import patch
from urllib.parse import quote

import pytest
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import (  # type: ignore[import-untyped]
    Credentials as BotoCredentials,
)
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model.bedrock.sigv4 import AwsCredentials, sign_request

MOMENT = 1440938160.0  # 2015-08-30 12:36:00 UTC, that of AWS's examples
EXAMPLE = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def sign_with_botocore(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes,
    *,
    credentials: AwsCredentials,
    region: str,
    service: str,
    moment: float,
) -> dict[str, str]:
    """Return the request as botocore signs it."""
    request = AWSRequest(method=method, url=url, headers=headers, data=body)
    keys = BotoCredentials(
        credentials.access_key, credentials.secret_key, credentials.session_token or None
    )
    now = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    with patch("botocore.auth.get_current_datetime", lambda: now):
        SigV4Auth(keys, service, region).add_auth(request)
    return dict(request.headers.items())


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "signature"),
    [
        ("GET", "/", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", {}, b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            {},
            b"",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        ("GET", "/ሴ", {}, b"", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
        (
            "POST",
            "/",
            FORM,
            b"Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
)
def test_the_examples_of_aws_come_out_as_published(
    method: str, path: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    signed = sign_request(
        method,
        f"https://example.amazonaws.com{path}",
        headers,
        body,
        credentials=EXAMPLE,
        region="us-east-1",
        service="service",
        moment=MOMENT,
    )
    assert signed["X-Amz-Date"] == "20150830T123600Z"
    assert signed["Authorization"].endswith(f"Signature={signature}")


PRINTABLE = st.text(string.ascii_letters + string.digits + " !#$%&'()*+,-./:;=?@~", max_size=20)
SEGMENTS = st.lists(
    st.text(min_size=1, max_size=12).filter(lambda text: text not in (".", "..")), max_size=4
).map(lambda parts: "".join("/" + quote(part, safe=":@~") for part in parts) or "/")
# A model's id may be sent with its colons escaped or not; each must be signed as it is sent.
IDS = st.from_regex(r"[a-z]{2}\.[a-z]+\.[a-z0-9-]{1,8}-v[0-9]:[0-9](/[a-z0-9]+)?", fullmatch=True)
MODELS = st.tuples(IDS, st.sampled_from(["", ":"])).map(
    lambda both: f"/model/{quote(both[0], safe=both[1])}/converse-stream"
)
QUERIES = st.lists(st.tuples(PRINTABLE, PRINTABLE), max_size=3).map(
    lambda pairs: "&".join(f"{quote(a, safe='')}={quote(b, safe='')}" for a, b in pairs)
)
HEADERS = st.dictionaries(
    st.from_regex(r"[Xx]-[A-Za-z]{1,8}", fullmatch=True).filter(lambda name: name != "x-amz"),
    PRINTABLE,
    max_size=4,
).filter(lambda headers: len({name.lower() for name in headers}) == len(headers))
SECRETS = st.text(string.ascii_letters + string.digits + "+/", min_size=1, max_size=40)


@given(
    method=st.sampled_from(["GET", "POST"]),
    origin=st.sampled_from(
        [
            "https://bedrock-runtime.us-east-1.amazonaws.com",
            "https://Example.COM:443",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
            "http://example.com:80",
        ]
    ),
    path=st.one_of(SEGMENTS, MODELS),
    query=QUERIES,
    headers=HEADERS,
    body=st.binary(max_size=50),
    credentials=st.builds(AwsCredentials, SECRETS, SECRETS, st.one_of(st.just(""), SECRETS)),
    region=st.sampled_from(["us-east-1", "eu-central-2"]),
    moment=st.floats(0, 4e9),
)
def test_botocore_signs_the_same_way(
    method: str,
    origin: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes,
    credentials: AwsCredentials,
    region: str,
    moment: float,
) -> None:
    url = origin + path + (f"?{query}" if query else "")
    moment = float(int(moment))
    ours = sign_request(
        method,
        url,
        headers,
        body,
        credentials=credentials,
        region=region,
        service="bedrock",
        moment=moment,
    )
    theirs = sign_with_botocore(
        method,
        url,
        headers,
        body,
        credentials=credentials,
        region=region,
        service="bedrock",
        moment=moment,
    )
    assert ours == theirs


def test_an_escape_in_the_path_is_escaped_again() -> None:
    """The same model, its colon escaped or not: different requests, different signatures."""
    signatures = {
        sign_request(
            "POST",
            f"https://example.com/model/{model}/converse-stream",
            {},
            b"",
            credentials=EXAMPLE,
            region="us-east-1",
            service="bedrock",
            moment=MOMENT,
        )["Authorization"]
        for model in ("a-v1:0", "a-v1%3A0")
    }
    assert len(signatures) == 2


def test_secrets_do_not_show_when_credentials_are_printed() -> None:
    shown = repr(AwsCredentials("AKID", "hush", "token", "bearer-key"))
    assert "AKID" in shown
    assert not any(secret in shown for secret in ("hush", "'token'", "bearer-key"))
