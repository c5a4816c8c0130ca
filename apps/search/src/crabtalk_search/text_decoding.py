"""Content: what kind of text a response is, and its bytes as characters."""

import codecs
import re
from typing import Literal, TypeAlias

ContentKind: TypeAlias = Literal["html", "text"]

HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPE_PATTERN = re.compile(
    r"text/.+|application/(json|xml|javascript|ecmascript|x-ndjson|toml|yaml|x-yaml|x-sh|sql|"
    r"rtf|x-tex|x-latex)|.+\+(json|xml|yaml)"
)
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
META_CHARSET_PATTERN = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
# As browsers have it: these names are used for pages that are in fact in the wider one.
WIDER_CHARSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
# A meta element that counts stands this early.
META_SEARCH_BYTES = 4096


def detect_content_kind(content_type: str, start: bytes) -> ContentKind | None:
    """None for what is no text. A server that does not say is judged by the first bytes."""
    if content_type in HTML_TYPES:
        return "html"
    if TEXT_TYPE_PATTERN.fullmatch(content_type):
        return "text"
    if content_type not in ("", "application/octet-stream") or b"\0" in start:
        return None
    if re.match(rb"\s*<(!doctype html|html|head|body)", start, re.IGNORECASE):
        return "html"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return None
    return "text"


def decode_text(data: bytes, charset: str | None) -> str:
    """By its byte order mark, else as the server says, else as the page says, else as it seems."""
    for mark, name in BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace")
    found = META_CHARSET_PATTERN.search(data[:META_SEARCH_BYTES])
    for given in (charset, found[1].decode("ascii", "replace") if found else None):
        if given and (known := find_codec(given)):
            return data.decode(known, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # What was UTF-8 up to a cut in its last character is UTF-8.
        is_cut = error.end == len(data) and not data[: error.start].isascii()
        return data[: error.start].decode() if is_cut else data.decode("cp1252", "replace")


def find_codec(name: str) -> str | None:
    """Python's name for it; None for what is no encoding of text."""
    try:
        found = codecs.lookup(name.strip())
        bytes(4).decode(found.name, "replace")  # some are no charsets, such as rot13
    except (LookupError, ValueError):
        return None
    return WIDER_CHARSETS.get(found.name, found.name)
