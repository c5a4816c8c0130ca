"""The watcher: notices every change, and waits for one that is not done."""

import os
import random
from pathlib import Path

import pytest

from apps.cron.tests.fake_daemon import make_entry_text, write_crons
from crabtalk_cron.crons_file import parse_crons_file
from crabtalk_cron.entry import CronEntry
from crabtalk_cron.file_watcher import CronsFileWatcher


def check_ids(watcher: CronsFileWatcher) -> list[int] | None:
    found = watcher.check_file()
    return None if found is None else [entry.id for entry in found.entries]


def check_until_settled(watcher: CronsFileWatcher) -> list[int] | None:
    """What it finds in two looks, after which it finds nothing new."""
    first, second = check_ids(watcher), check_ids(watcher)
    assert watcher.check_file() is None
    return first or second


@pytest.mark.req("cron.reload.changes")
def test_a_file_is_read_when_it_is_the_same_in_two_looks_and_then_not_again(home: Path) -> None:
    watcher = CronsFileWatcher(write_crons(home, make_entry_text(1)))
    assert [check_ids(watcher) for _ in range(4)] == [None, [1], None, None]


@pytest.mark.req("cron.reload.changes")
def test_every_way_to_change_a_file_is_noticed(home: Path) -> None:
    path = write_crons(home, make_entry_text(1))
    watcher = CronsFileWatcher(path)
    assert check_until_settled(watcher) == [1]
    # In place, of the same size, and with its old times: only its change time tells.
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # until that has gone on
        with path.open("r+") as file:
            file.write(make_entry_text(2))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert check_until_settled(watcher) == [2]
    # Replaced by one that has those times too.
    new = path.with_name("new")
    new.write_text(make_entry_text(3))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    assert check_until_settled(watcher) == [3]
    path.unlink()
    assert check_until_settled(watcher) == []
    write_crons(home, make_entry_text(4))
    assert check_until_settled(watcher) == [4]


@pytest.mark.req("cron.reload.half")
def test_a_file_that_is_half_written_is_not_taken_for_one_that_lost_entries(home: Path) -> None:
    path = write_crons(home, make_entry_text(1) + make_entry_text(2))
    watcher = CronsFileWatcher(path)
    assert check_until_settled(watcher) == [1, 2]
    with path.open("w") as file:
        file.write(make_entry_text(1))
        file.flush()
        assert check_ids(watcher) is None
        file.write(make_entry_text(2) + make_entry_text(3))
    assert check_until_settled(watcher) == [1, 2, 3]


@pytest.mark.req("cron.reload.changes")
def test_a_file_that_never_stops_changing_is_read_all_the_same(home: Path) -> None:
    watcher = CronsFileWatcher(write_crons(home, ""))
    found = []
    for number in range(1, 7):
        write_crons(home, make_entry_text(number) + "#" * number)
        found.append(check_ids(watcher))
    assert found == [None, None, [3], None, None, [6]]


def test_a_file_nobody_may_read_is_a_mistake_and_not_an_empty_one(home: Path) -> None:
    path = write_crons(home, make_entry_text(1))
    path.unlink()
    path.symlink_to(path)
    (mistake,) = CronsFileWatcher(path).read_file().mistakes
    assert mistake.text.startswith("it cannot be read: Too many levels")


def parse_single_entry(text: str) -> CronEntry:
    (entry,) = parse_crons_file(text).entries
    return entry


@pytest.mark.req("cron.once.removed")
def test_an_entry_is_removed_only_as_it_was_and_beside_mistakes_of_others(home: Path) -> None:
    wrong = make_entry_text(7, "never")
    path = write_crons(home, wrong + make_entry_text(1) + make_entry_text(2))
    watcher = CronsFileWatcher(path)
    assert watcher.remove_entry(parse_single_entry(make_entry_text(1)))
    assert path.read_text() == wrong + make_entry_text(2)


@pytest.mark.req("cron.once.removed")
def test_an_entry_that_is_not_there_is_no_error_unless_that_cannot_be_known(home: Path) -> None:
    path = write_crons(home, make_entry_text(2))
    watcher = CronsFileWatcher(path)
    assert watcher.remove_entry(parse_single_entry(make_entry_text(2))) is True
    assert watcher.remove_entry(parse_single_entry(make_entry_text(2))) is False
    write_crons(home, make_entry_text(1) + "[[cron\n")
    with pytest.raises(ValueError, match="line 7: "):
        watcher.remove_entry(parse_single_entry(make_entry_text(1)))
    path.unlink()
    assert watcher.remove_entry(parse_single_entry(make_entry_text(1))) is False


@pytest.mark.req("cron.bounds.entries")
def test_a_thousand_entries_are_read_and_one_taken_out_whichever_it_is(home: Path) -> None:
    texts = [f"# {number}\n{make_entry_text(number)}" for number in range(1000)]
    path = write_crons(home, "".join(texts))
    watcher = CronsFileWatcher(path)
    assert len(watcher.read_file().entries) == 1000
    gone = random.Random(1).randrange(1000)
    assert watcher.remove_entry(parse_single_entry(make_entry_text(gone)))
    assert path.read_text() == "".join(
        f"# {number}\n" if number == gone else text for number, text in enumerate(texts)
    )
