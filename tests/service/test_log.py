"""The log of a component: one line for each record, with all characters visible."""

import logging

import pytest

from crabtalk.service.log import OneLineFormatter


@pytest.mark.req("logs.invisible")
def test_a_line_shows_control_and_format_characters_as_escapes() -> None:
    record = logging.makeLogRecord({"name": "dice", "msg": "a\u202eb\u2066c\u200bd\ufeffe\nf é 砂"})
    line = OneLineFormatter().format(record)
    assert line.endswith("dice: a\\u202eb\\u2066c\\u200bd\\ufeffe\\nf é 砂")
