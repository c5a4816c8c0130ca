"""Message bodies: what is sealed around an envelope, and the older kinds of messages."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .envelope import Envelope, EnvelopeError
from .envelope_decoding import read_envelope
from .envelope_encoding import encode_envelope
from .json_values import clean_json_value, parse_json


class MessageMeta(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """How a message should be answered. Readers skip the keys they do not know."""

    sent_from: str = ""
    permission_mode: str = ""
    model: str | None = None
    fallback_model: str | None = None
    model_provider_id: str = ""
    effort: str | None = None
    custom_system_prompt: str | None = None
    append_system_prompt: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] | None = None
    display_text: str = ""


class MessageBody(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="role", rename="camel"
):
    """Base class of the bodies below."""


class UserText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class UserBody(MessageBody, frozen=True, tag="user", kw_only=True):
    """A message that a person typed into an app."""

    content: UserText
    local_key: str = ""
    meta: MessageMeta | UnsetType = UNSET


class AgentBody(MessageBody, frozen=True, tag="agent", kw_only=True):
    """A body of the formats before this protocol; `content["type"]` says which. We never write
    it."""

    content: dict[str, Any]
    meta: MessageMeta | UnsetType = UNSET


class SessionBody(MessageBody, frozen=True, tag="session", kw_only=True):
    content: Envelope
    meta: MessageMeta | UnsetType = UNSET


AnyBody = UserBody | AgentBody | SessionBody


def encode_body(envelope: Envelope, *, is_compat: bool = False) -> bytes:
    """Encode the envelope in the body that every reader accepts. Raises EnvelopeError."""
    return b'{"role":"session","content":' + encode_envelope(envelope, is_compat=is_compat) + b"}"


def decode_body(data: bytes | str) -> AnyBody | None:
    """Return None for a body that cannot be parsed: readers skip it."""
    try:
        return read_body(parse_json(data))
    except EnvelopeError:
        return None


def read_body(value: Any) -> AnyBody:
    """Raises EnvelopeError."""
    if not isinstance(value, dict):
        raise EnvelopeError("a body is an object")
    if value.get("role") == "session":
        meta = convert_value(
            clean_json_value({"meta": value["meta"]} if "meta" in value else {}), MetaOnly
        ).meta
        return SessionBody(content=read_envelope(unwrap_content(value.get("content"))), meta=meta)
    body: UserBody | AgentBody = convert_value(clean_json_value(value), UserBody | AgentBody)
    if isinstance(body, AgentBody) and not isinstance(body.content.get("type"), str):
        raise EnvelopeError("the content of an agent has a type")
    return body


def unwrap_content(content: Any) -> Any:
    """Apps nest the files of their users one level deeper."""
    is_wrapped = isinstance(content, dict) and content.get("type") == "session"
    return content.get("data") if is_wrapped else content


class MetaOnly(msgspec.Struct):
    meta: MessageMeta | UnsetType = UNSET


def convert_value(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise EnvelopeError(str(error)) from None


# ── Chains ──────────────────────────────────────────────────────────────────────────────────────
# A relay stores and delivers messages, and must not be able to replay one, drop one or change their
# order. So a device writes into each message, inside the seal, its number and the hash of the
# message before it. Clients that do not know the chain leave the key out.

CHAIN_KEY = "crabtalkChain"
CHAIN_ID = re.compile(r"[0-9a-zA-Z_-]{16,64}")
# SHA-256 in base64.
CHAIN_HASH = re.compile(r"[0-9a-zA-Z+/]{43}=")
LAST_COUNTER = 2**53 - 1


class ChainLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """`device` names the device, `chain` one unbroken sequence of its messages in one session.

    `counter` starts at 1. `previous` is the SHA-256 of the sealed bytes of the message before, in
    base64; empty for the first.
    """

    device: str
    chain: str
    session: str
    counter: int
    previous: str = ""


def read_chain_link(body: Any) -> ChainLink | None:
    """Return the chain link of an opened body; None if there is no valid one."""
    value = body.get(CHAIN_KEY) if isinstance(body, dict) else None
    try:
        chain = msgspec.convert(value, ChainLink)
    except msgspec.ValidationError:
        return None
    is_first = chain.counter == 1
    is_sound = (
        CHAIN_ID.fullmatch(chain.device) is not None
        and CHAIN_ID.fullmatch(chain.chain) is not None
        and 1 <= chain.counter <= LAST_COUNTER
        and (not chain.previous if is_first else CHAIN_HASH.fullmatch(chain.previous) is not None)
    )
    return chain if is_sound else None
