"""Text decoding: which bytes are text, and in which charset."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_search.text_decoding import decode_text, detect_content_kind


@pytest.mark.req("searchapp.fetch.charset")
@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("é".encode(), None, "é"),
        ("é".encode("cp1252"), None, "é"),
        ("“é”".encode("cp1252"), "iso-8859-1", "“é”"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("中文".encode("gb18030"), "gb2312", "中文"),
        (codecs.BOM_UTF16_LE + "é".encode("utf-16-le"), "utf-8", "é"),
        (codecs.BOM_UTF8 + "é".encode(), "latin-1", "é"),
        (b'<meta charset="koi8-r">' + "я".encode("koi8-r"), None, '<meta charset="koi8-r">я'),
        (
            b'<meta http-equiv=Content-Type content="text/html; charset=koi8-r">'
            + "я".encode("koi8-r"),
            None,
            '<meta http-equiv=Content-Type content="text/html; charset=koi8-r">я',
        ),
        (b'<meta charset="koi8-r">' + "я".encode(), "utf-8", '<meta charset="koi8-r">я'),
        ("é".encode(), "klingon", "é"),
        ("é".encode(), "rot13", "é"),
        ("é".encode(), "hex", "é"),
        (b"\xff\xfe\xfd"[2:] + b"a", "utf-8", "\N{REPLACEMENT CHARACTER}a"),
        ("éabcé".encode()[:-1], None, "éabc"),
    ],
)
def test_bytes_become_characters(data: bytes, charset: str | None, text: str) -> None:
    assert decode_text(data, charset) == text


@pytest.mark.req("searchapp.fetch.charset")
@given(st.binary(max_size=200), st.one_of(st.none(), st.text(max_size=10)))
def test_any_bytes_and_charset_can_be_decoded(data: bytes, charset: str | None) -> None:
    assert isinstance(decode_text(data, charset), str)


@pytest.mark.req("searchapp.fetch.types")
@pytest.mark.parametrize(
    ("content_type", "start", "kind"),
    [
        ("text/html", b"", "html"),
        ("application/xhtml+xml", b"", "html"),
        ("text/css", b"", "text"),
        ("application/rss+xml", b"", "text"),
        ("application/json", b"", "text"),
        ("application/pdf", b"%PDF", None),
        ("", b" \n<!DOCTYPE HTML>", "html"),
        ("", b"words", "text"),
        ("", b"\x89PNG", None),
        ("", b"a\0b", None),
        ("", "é".encode()[:1], "text"),
        ("application/octet-stream", b"words", "text"),
    ],
)
def test_the_kind_of_a_response_is_detected(
    content_type: str, start: bytes, kind: str | None
) -> None:
    assert detect_content_kind(content_type, start) == kind
