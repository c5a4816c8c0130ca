"""Read the comments on limits, on wire messages, and on error codes from the sources.

This module knows nothing about pages; docs.generate puts the comments on them.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from crabtalk import protocol
from crabtalk.protocol import RequestError

FIELD = re.compile(r"    (\w+): [^=]+ = ")
SECTION = re.compile(r"// ── (.+?) ─+")
MESSAGE = re.compile(r"(message|enum) (\w+) \{(\})?")
ONEOF = re.compile(r"oneof (\w+) \{")
MEMBER = re.compile(r"(?:((?:optional |repeated )?[\w<>, .]+) )?(\w+) = (\d+);")


@dataclass(frozen=True, slots=True)
class DocumentedLimit:
    """Keys of [limits] that share one comment, with their defaults."""

    keys: tuple[str, ...]
    defaults: tuple[Any, ...]
    comment: str


def read_limits(kind: type[Any]) -> Iterator[DocumentedLimit]:
    """Yield the limits of a dataclass in order. A field without a comment shares the one above."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    comment: list[str] = []
    keys: list[str] = []

    def bound() -> DocumentedLimit:
        return DocumentedLimit(tuple(keys), tuple(defaults[key] for key in keys), " ".join(comment))

    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    # "):
            above.append(line.removeprefix("    # "))
        elif found := FIELD.match(line):
            if above and keys:
                yield bound()
                keys = []
            comment = above or comment
            keys.append(found[1])
            above = []
    yield bound()


@dataclass(frozen=True, slots=True)
class WireMember:
    """A field of a message, or a value of an enum, which has no kind."""

    name: str
    number: int
    kind: str
    comment: str


@dataclass(slots=True)
class WireMessage:
    """A message or an enum. `oneof` is the name of its oneof, if it has one."""

    name: str
    comment: str
    is_enum: bool
    oneof: str = ""
    members: list[WireMember] = dataclasses.field(default_factory=list)


@dataclass(slots=True)
class WireSection:
    title: str
    messages: list[WireMessage] = dataclasses.field(default_factory=list)


def parse_proto(proto: str) -> list[WireSection]:
    """Parse the proto file into the sections of its comments. `reserved` is left out."""
    found: list[WireSection] = []
    above: list[str] = []
    for line in map(str.strip, proto.splitlines()):
        if section := SECTION.fullmatch(line):
            found.append(WireSection(section[1]))
        elif line.startswith("//"):
            above.append(line.removeprefix("//").strip())
            continue
        elif message := MESSAGE.match(line):
            is_enum = message[1] == "enum"
            found[-1].messages.append(WireMessage(message[2], " ".join(above), is_enum))
        elif oneof := ONEOF.match(line):
            found[-1].messages[-1].oneof = oneof[1]
        elif member := MEMBER.fullmatch(line.partition(" //")[0].rstrip()):
            comment = " ".join([*above, *([line.partition(" //")[2].strip()] * ("//" in line))])
            kind = member[1] or ""
            found[-1].messages[-1].members.append(
                WireMember(member[2], int(member[3]), kind, comment)
            )
        above = []
    return found


def read_error_codes() -> list[tuple[int, str]]:
    """Return every error code with the first line of its class's docstring."""
    kinds: Iterable[Any] = vars(protocol).values()
    found = {
        kind.code: inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, RequestError) and kind is not RequestError
    }
    return sorted(found.items())
