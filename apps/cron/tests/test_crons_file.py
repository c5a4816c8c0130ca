"""crons.toml: valid entries, and every mistake with its line."""

from datetime import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_cron.crons_file import FileRemark, parse_crons_file
from crabtalk_cron.entry import CronEntry
from crabtalk_cron.expression import CronExpression
from crabtalk_cron.schedule import CronSchedule, QuietHours
from crabtalk_cron.time_zones import LOCAL_ZONE, find_zone

# The example in RFC 0080.
FEEDS_ENTRY = """[[cron]]
id = 1
schedule = "0 */2 * * * *"
skill = "check-feeds"
agent = "crab"
sender = "cron"
quiet_start = "23:00"
quiet_end = "07:00"
once = false
"""
SHORT_ENTRY = '[[cron]]\nid = 1\nschedule = "@daily"\nagent = "crab"\nskill = "feeds"\n'


def parse_single_entry(text: str) -> CronEntry:
    crons = parse_crons_file(text)
    assert (crons.mistakes, crons.remarks) == ([], [])
    (entry,) = crons.entries
    return entry


@pytest.mark.req("cron.entry.fields")
def test_the_entry_of_rfc_0080_is_parsed() -> None:
    schedule = CronSchedule(
        CronExpression.parse("0 */2 * * * *"), LOCAL_ZONE, QuietHours(time(23), time(7))
    )
    assert parse_single_entry(FEEDS_ENTRY) == CronEntry(
        1, schedule, "crab", "/check-feeds", "cron", once=False
    )


@pytest.mark.req("cron.entry.defaults")
def test_sender_quiet_hours_once_zone_and_jitter_may_be_left_out() -> None:
    schedule = CronSchedule(CronExpression.parse("@daily"), LOCAL_ZONE, None)
    assert parse_single_entry(SHORT_ENTRY) == CronEntry(
        1, schedule, "crab", "/feeds", "cron", once=False, jitter=0
    )


@pytest.mark.req("trust.cron.origin")
def test_the_default_creator_is_the_owner_except_in_other_peoples_conversations() -> None:
    assert parse_single_entry(SHORT_ENTRY).created_by == "user"
    for sender in ("cron:nightly", "user", "user~work"):
        assert parse_single_entry(f'{SHORT_ENTRY}sender = "{sender}"\n').created_by == "user"
    assert (
        parse_single_entry(f'{SHORT_ENTRY}sender = "tg:7"\ncreated_by = "user"\n').created_by
        == "user"
    )
    crons = parse_crons_file(f'{SHORT_ENTRY}sender = "tg:7"\n')
    assert crons.entries[0].created_by == "tg:7"
    (remark,) = crons.remarks
    assert remark.line == 6
    assert 'add created_by = "user"' in remark.text


@pytest.mark.req("cron.entry.message")
def test_a_message_is_sent_unchanged() -> None:
    text = SHORT_ENTRY.replace('skill = "feeds"', 'message = """\nWake up,\n  crab."""')
    assert parse_single_entry(text).content == "Wake up,\n  crab."


@pytest.mark.req("cron.schedule.tz")
def test_a_zone_can_be_given_to_an_entry_and_to_all_that_have_none() -> None:
    text = 'tz = "UTC"\n' + SHORT_ENTRY + SHORT_ENTRY.replace("id = 1", 'id = 2\ntz = "Asia/Tokyo"')
    first, second = parse_crons_file(text).entries
    assert first.schedule.zone == find_zone("UTC")
    assert second.schedule.zone == find_zone("Asia/Tokyo")


def test_an_empty_file_has_no_entries_and_no_mistakes() -> None:
    crons = parse_crons_file("# nothing yet\n")
    assert (crons.entries, crons.mistakes, crons.remarks, crons.at_once) == ([], [], [], 8)


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("id = 1\n", "", 2, "this entry has no id; add one"),
        ("id = 1", 'id = "1"', 3, "id must be a whole number"),
        ("id = 1", "id = true", 3, "id must be a whole number"),
        ("id = 1", "id = -1", 3, "the id -1 is not within 0 and 2^64"),
        ('schedule = "@daily"\n', "", 2, "this entry has no schedule; add one"),
        ('"@daily"', '"0 61 * * * *"', 4, "minute 61 is not within 0-59"),
        ('"@daily"', "[1]", 4, "schedule must be text"),
        ('agent = "crab"', 'agent = ""', 5, "agent is empty; name one"),
        ('agent = "crab"\n', "", 2, "this entry has no agent; add one"),
        ('skill = "feeds"', 'skill = "/feeds"', 6, "write its name, without the slash"),
        ('skill = "feeds"', 'skill = ""', 6, "write its name, without the slash"),
        ('skill = "feeds"\n', "", 2, "an entry has a skill or a message"),
        ('skill = "feeds"', 'skill = "a"\nmessage = "b"', 6, "one of them, and not both"),
        ('skill = "feeds"', 'message = " "', 6, "message is empty; say something"),
        ("id = 1", 'id = 1\nsender = ""', 4, "sender is empty; name one, or leave the line out"),
        ("id = 1", 'id = 1\ncreated_by = ""', 4, "created_by is empty; name one"),
        ("id = 1", 'id = 1\nmode = "yolo"', 4, "mode 'yolo' is none of plan, ask"),
        ("id = 1", 'id = 1\ntz = "Mars"', 4, "'Mars' is no time zone; write one like"),
        ("id = 1", 'id = 1\nquiet_start = "25:00"', 4, "'25:00' is no time; write one like 23:00"),
        ("id = 1", "id = 1\nquiet_end = 07:00:00", 4, "quiet_end must be text"),
        ("id = 1", 'id = 1\nonce = "yes"', 4, "once must be true or false"),
        ("id = 1", "id = 1\njitter = 3601", 4, "jitter is a number of seconds, 3600 at most"),
        ("id = 1", "id = 1\njitter = nan", 4, "jitter is a number of seconds, 3600 at most"),
        ("id = 1", "id = 1\nid = 2", 4, "this is not TOML"),
        ("# c", 'at_once = 0\ntz = "UTC"', 1, "at_once is a number from 1 to 1000"),
        ("# c", "tz = 1", 1, "is no time zone|expected"),
        ("# c", "cron = 3", 2, "this is not TOML"),
    ],
)
@pytest.mark.req("cron.reload.line")
def test_a_mistake_is_reported_with_its_line_and_advice(
    old: str, new: str, line: int, complaint: str
) -> None:
    (mistake,) = parse_crons_file(f"# c\n{SHORT_ENTRY}".replace(old, new, 1)).mistakes
    assert mistake.line == line
    assert any(part in str(mistake) for part in complaint.split("|"))


@pytest.mark.req("cron.reload.line")
def test_correct_entries_are_parsed_beside_wrong_ones() -> None:
    text = (
        SHORT_ENTRY
        + SHORT_ENTRY.replace("@daily", "@nightly")
        + SHORT_ENTRY.replace("id = 1", "id = 3")
    )
    crons = parse_crons_file(text)
    assert [entry.id for entry in crons.entries] == [1, 3]
    assert crons.table_numbers == [0, 2]
    (mistake,) = crons.mistakes
    assert mistake.line == 8


@pytest.mark.req("cron.entry.ids")
def test_two_entries_of_one_id_are_a_mistake_that_names_a_free_one() -> None:
    crons = parse_crons_file(SHORT_ENTRY + SHORT_ENTRY)
    assert crons.mistakes == [FileRemark(7, "the entry at line 1 has the id 1 already; take 2")]


@pytest.mark.req("cron.entry.unknown")
def test_unknown_keys_are_ignored_with_a_remark() -> None:
    crons = parse_crons_file(f"colour = 1\n{SHORT_ENTRY}quite_start = 2\n")
    assert len(crons.entries) == 1
    assert [(remark.line, remark.text.split()[0]) for remark in crons.remarks] == [
        (1, "colour"),
        (7, "quite_start"),
    ]


@pytest.mark.req("cron.quiet.both")
def test_one_end_of_quiet_hours_alone_is_ignored_with_a_remark() -> None:
    crons = parse_crons_file(f'{SHORT_ENTRY}quiet_start = "23:00"\n')
    assert crons.entries[0].schedule.quiet is None
    assert crons.remarks == [
        FileRemark(
            6, "quiet_start alone means nothing and is ignored; set both ends of quiet hours"
        )
    ]


@pytest.mark.parametrize("text", ["cron = 3\n", "[cron]\nid = 1\n", "cron = [1]\n"])
def test_entries_that_are_no_tables_are_a_mistake(text: str) -> None:
    assert parse_crons_file(text).mistakes == [
        FileRemark(1, "write each entry as a [[cron]] table")
    ]


def test_entries_in_one_array_are_read_and_their_mistakes_found() -> None:
    crons = parse_crons_file(
        'cron = [\n{id = 1, schedule = "@daily", agent = "a", skill = "s"},\n{}]'
    )
    assert [entry.id for entry in crons.entries] == [1]
    assert crons.mistakes == [FileRemark(1, "this entry has no id; add one")]


@given(st.text(max_size=200))
def test_any_text_can_be_parsed_as_a_crons_file(text: str) -> None:
    crons = parse_crons_file(text)
    assert crons.entries == []


def test_the_title_for_logs_does_not_contain_the_message() -> None:
    assert parse_single_entry(SHORT_ENTRY).title == "cron 1 (/feeds to crab)"
    secret = parse_single_entry(SHORT_ENTRY.replace("skill", "message"))
    assert secret.title == "cron 1 (a message to crab)"
    command = parse_single_entry(SHORT_ENTRY.replace('skill = "feeds"', 'message = "/open 1234"'))
    assert command.title == "cron 1 (/open to crab)"
