"""crabtalk-cron next and check; and the command line: help, exit codes, accurate pages."""

import asyncio
import json
import os
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

import crabtalk_cron
from apps.cron.help_pages import PAGE
from apps.cron.tests.cron_command import PROGRAM, run_cron
from apps.cron.tests.fake_daemon import make_entry_text, write_crons
from crabtalk_cron.cli import main
from crabtalk_cron.crons_file import TOP_KEYS, parse_crons_file
from crabtalk_cron.entry import KINDS
from crabtalk_cron.expression import NICKNAMES, CronExpression
from tests.forked_programs import PIPE

COMMANDS = [(), *((name,) for name in main.commands)]
DOCS = Path(__file__).parents[3] / "docs" / "cron.md"


@pytest.mark.req("cron.cli.next")
async def test_next_prints_the_next_times_of_every_entry_in_its_zone(home: Path) -> None:
    write_crons(
        home,
        make_entry_text(1, "0 0 0 1 1 ? 2098,2099", tz="Europe/Berlin")
        + make_entry_text(2, "0 0 12 1 7 ? 2098", tz="UTC", message="Hi", jitter=30)
        + make_entry_text(3, "0 0 0 1 1 ? 2020"),
    )
    outcome = await run_cron("next", "--home", home, "-n", "2")
    assert outcome.output.splitlines() == [
        "1  crab /s1  Wed 2098-01-01 00:00:00 +0100",
        "1  crab /s1  Thu 2099-01-01 00:00:00 +0100",
        "2  crab Hi   Tue 2098-07-01 12:00:00 +0000 and up to 30 s later",
        "3  crab /s3  never",
    ]
    outcome = await run_cron("next", CRABTALK_HOME=str(home))
    assert len(outcome.output.splitlines()) == 3


@pytest.mark.req("cron.cli.next")
async def test_next_is_one_json_document_for_programs(home: Path) -> None:
    write_crons(home, make_entry_text(1, "0 0 12 1 7 ? 2098", tz="UTC"))
    outcome = await run_cron("next", "--home", home, "--json")
    assert json.loads(outcome.output) == {
        "entries": [
            {
                "id": 1,
                "agent": "crab",
                "content": "/s1",
                "sender": "cron",
                "created_by": "user",
                "mode": None,
                "once": False,
                "jitter": 0.0,
                "next": ["2098-07-01T12:00:00+00:00"],
            }
        ]
    }


@pytest.mark.req("cron.cli.next")
async def test_next_leaves_out_quiet_hours(home: Path) -> None:
    write_crons(
        home, make_entry_text(1, "0 0 * * * *", tz="UTC", quiet_start="10:00", quiet_end="09:00")
    )
    outcome = await run_cron("next", "--home", home, "--json", "-n", "5")
    moments = [
        datetime.fromisoformat(item) for item in json.loads(outcome.output)["entries"][0]["next"]
    ]
    assert [moment.hour for moment in moments] == [9] * 5
    assert moments[0] > datetime.now(UTC)


@pytest.mark.req("cron.schedule.local")
async def test_without_a_zone_times_are_in_the_machines_zone(home: Path) -> None:
    write_crons(home, make_entry_text(1, "0 0 9 1 7 ? 2098"))
    for zone, offset in (
        ("Asia/Kolkata", "+0530"),
        ("America/New_York", "-0400"),
        ("UTC", "+0000"),
    ):
        outcome = await run_cron("next", "--home", home, TZ=zone)
        assert outcome.output == f"1  crab /s1  Tue 2098-07-01 09:00:00 {offset}\n"


@pytest.mark.req("cron.cli.next")
async def test_next_without_a_file_says_where_one_goes(home: Path) -> None:
    outcome = await run_cron("next", "--home", home)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith(f"there are no entries in {home / 'config' / 'crons.toml'}; ")
    assert not home.exists()


@pytest.mark.req("cron.cli.check")
async def test_check_without_a_file_says_where_one_goes(home: Path) -> None:
    outcome = await run_cron("check", "--home", home)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith(f"there is no {home / 'config' / 'crons.toml'}; ")
    assert not home.exists()


@pytest.mark.req("cron.cli.check")
async def test_check_counts_the_correct_entries(home: Path) -> None:
    for text, count in (
        ("", "0 entries"),
        (make_entry_text(1), "1 entry"),
        (make_entry_text(1) + make_entry_text(2), "2 entries"),
    ):
        write_crons(home, text)
        assert (await run_cron("check", "--home", home)).output == f"{count}, no mistakes\n"


@pytest.mark.req("cron.cli.check")
async def test_check_reports_every_mistake_and_remark_with_its_line(home: Path) -> None:
    text = (
        make_entry_text(1, "0 99 * * * *") + make_entry_text(2, colour="red") + make_entry_text(2)
    )
    path = write_crons(home, text)
    outcome = await run_cron("check", "--home", home)
    assert (outcome.code, outcome.out) == (1, "")
    assert [line.partition(": ")[0] for line in outcome.err.splitlines()] == [
        f"{path}, line {line}" for line in (3, 15, 12)
    ]
    outcome = await run_cron("check", "--home", home, "--json")
    assert (outcome.code, outcome.err) == (1, "")
    report = json.loads(outcome.out)
    assert (report["path"], report["entries"]) == (str(path), 1)
    assert [mistake["line"] for mistake in report["mistakes"]] == [3, 15]
    assert [remark["line"] for remark in report["remarks"]] == [12]


@pytest.mark.req("cron.cli.check")
async def test_check_remarks_on_entries_that_are_never_fired(home: Path) -> None:
    past = make_entry_text(1, "0 0 0 * * * 2020")
    path = write_crons(
        home, past + make_entry_text(2, "@daily", quiet_start="23:00", quiet_end="01:00")
    )
    outcome = await run_cron("check", "--home", home)
    assert (outcome.code, outcome.out) == (0, "2 entries, no mistakes\n")
    assert outcome.err == "".join(
        f"{path}: entry {number} is never fired: its times are past, or quiet\n"
        for number in (1, 2)
    )
    assert json.loads((await run_cron("check", "--home", home, "--json")).output)["never"] == [1, 2]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"# fine\n\xff\n", "it cannot be read: line 2 is not UTF-8; convert it"),
        (b" " * (2 * 1024 * 1024 + 1), "it is larger than 2 MiB; take entries out"),
        (b"[[cron]]\nid = \n", "line 2: Invalid value; this is not TOML"),
    ],
)
@pytest.mark.req("cron.cli.check")
async def test_a_file_that_cannot_be_read_is_reported(
    home: Path, data: bytes, complaint: str
) -> None:
    path = write_crons(home, "")
    path.write_bytes(data)
    outcome = await run_cron("check", "--home", home)
    assert outcome.code == 1
    assert complaint in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.req("cron.cli.check")
async def test_a_pipe_instead_of_the_file_is_reported_and_does_not_block(home: Path) -> None:
    path = write_crons(home, "")
    path.unlink()
    os.mkfifo(path)
    assert "it is not a file; move it away" in (await run_cron("check", "--home", home)).err
    path.unlink()
    path.mkdir()
    assert "it is not a file; move it away" in (await run_cron("check", "--home", home)).err


# ── The command line itself ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.req("cron.cli.help")
async def test_help_fits_a_screen_and_has_examples(words: tuple[str, ...]) -> None:
    output = (await run_cron(*words, "--help")).output
    assert output == f"{PAGE.render_help(list(words))}\n"
    assert " ".join(["crabtalk-cron", *words]) in output.partition("Example")[2]
    assert len(output.splitlines()) <= 24
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("words", ["next", "check", "check --json"])
@pytest.mark.req("cron.cli.help")
async def test_every_command_brings_all_it_needs(home: Path, words: str) -> None:
    write_crons(home, make_entry_text(1, "0 0 12 1 7 ? 2098", tz="UTC"))
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *words.split(), "--home", home, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    outcome = await run_cron(*words.split(), "--home", home)
    assert (process.returncode, out.decode(), err.decode()) == (0, outcome.output, "")


@pytest.mark.req("cron.cli.help")
async def test_the_version_is_printed() -> None:
    assert (await run_cron("--version")).output == f"crabtalk-cron {crabtalk_cron.__version__}\n"


@pytest.mark.parametrize("words", [("sing",), ("next", "-n", "0"), ("check", "--home", "")])
@pytest.mark.req("cron.cli.help")
async def test_unknown_words_exit_with_two(words: tuple[str, ...]) -> None:
    outcome = await run_cron(*words)
    assert (outcome.code, outcome.out) == (2, "")


@pytest.mark.req("cron.cli.help")
async def test_a_closed_pipe_is_no_error(home: Path) -> None:
    write_crons(home, "".join(make_entry_text(number) for number in range(100)))
    command = f"'{PROGRAM}' next --home '{home}' -n 100 | head -n 1"
    process = await asyncio.create_subprocess_shell(command, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert out.startswith(b"0   crab /s0 ")
    assert err == b""


# ── The pages ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cron.cli.help")
def test_the_page_has_the_current_help_of_all_commands() -> None:
    page = PAGE.read_page()
    assert PAGE.refresh_blocks(page) == page, f"run python -m {PAGE.script}"
    assert sorted(PAGE.list_shown_commands(page)) == sorted(["", *main.commands])
    stale = page.replace("--help ", "--hilfe ")
    assert stale != page
    assert PAGE.refresh_blocks(stale) == page


@pytest.mark.req("cron.docs")
def test_every_example_file_on_the_page_is_valid_and_all_keys_appear() -> None:
    page = DOCS.read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        crons = parse_crons_file(block)
        assert (crons.mistakes, crons.remarks) == ([], [])
    keys = set(
        re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)))
    )
    assert keys >= KINDS.keys()
    top = set(tomllib.loads(blocks[1])) | {"cron"}
    assert top == TOP_KEYS


@pytest.mark.req("cron.docs")
def test_every_schedule_on_the_page_is_valid() -> None:
    page = DOCS.read_text(encoding="utf-8").partition("| schedule | |")[2]
    rows = page.partition("\n\n")[0].splitlines()[2:]
    schedules = [word for row in rows for word in re.findall(r"`(.*?)`", row)]
    assert {word for word in schedules if word.startswith("@")} == set(NICKNAMES)
    assert len(schedules) > 10
    for schedule in schedules:
        CronExpression.parse(schedule)
