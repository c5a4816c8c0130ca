"""Detects what kind of text a response is, and decodes its bytes."""

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
# As in browsers: pages with the name on the left are often written in the wider charset.
WIDER_CHARSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
# A meta element only counts within these first bytes.
META_SEARCH_BYTES = 4096


def detect_content_kind(content_type: str, start: bytes) -> ContentKind | None:
    """None if it is not text. Without a known content type, the first bytes decide."""
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
    """Decode by the byte order mark, else the server's charset, else the page's, else a guess."""
    for mark, name in BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace")
    meta_charset = META_CHARSET_PATTERN.search(data[:META_SEARCH_BYTES])
    page_charset = meta_charset[1].decode("ascii", "replace") if meta_charset else None
    for candidate in (charset, page_charset):
        if candidate and (codec := find_codec(candidate)):
            return data.decode(codec, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # A cut in the middle of the last character does not make a text invalid UTF-8.
        is_cut = error.end == len(data) and not data[: error.start].isascii()
        return data[: error.start].decode() if is_cut else data.decode("cp1252", "replace")


def find_codec(name: str) -> str | None:
    """Python's name of a charset; None if it is not one."""
    try:
        codec = codecs.lookup(name.strip())
        bytes(4).decode(codec.name, "replace")  # some codecs are no charsets, such as rot13
    except (LookupError, ValueError):
        return None
    return WIDER_CHARSETS.get(codec.name, codec.name)
