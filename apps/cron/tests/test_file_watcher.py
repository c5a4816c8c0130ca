"""The watcher: it notices every change, and waits until a file is complete."""

import os
import random
from pathlib import Path

import pytest

from apps.cron.tests.fake_daemon import make_entry_text, write_crons
from crabtalk_cron.crons_file import parse_crons_file
from crabtalk_cron.entry import CronEntry
from crabtalk_cron.file_watcher import CronsFileWatcher


def check_ids(watcher: CronsFileWatcher) -> list[int] | None:
    crons = watcher.check_file()
    return None if crons is None else [entry.id for entry in crons.entries]


def check_until_settled(watcher: CronsFileWatcher) -> list[int] | None:
    """The result of two checks, after which there is nothing new."""
    first, second = check_ids(watcher), check_ids(watcher)
    assert watcher.check_file() is None
    return first or second


@pytest.mark.req("cron.reload.changes")
def test_a_file_is_read_once_when_two_checks_see_the_same_version(home: Path) -> None:
    watcher = CronsFileWatcher(write_crons(home, make_entry_text(1)))
    assert [check_ids(watcher) for _ in range(4)] == [None, [1], None, None]


@pytest.mark.req("cron.reload.changes")
def test_every_way_to_change_a_file_is_noticed(home: Path) -> None:
    path = write_crons(home, make_entry_text(1))
    watcher = CronsFileWatcher(path)
    assert check_until_settled(watcher) == [1]
    # In place, with the same size and the old modification time: only the change time differs.
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # file times are coarse
        with path.open("r+") as file:
            file.write(make_entry_text(2))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert check_until_settled(watcher) == [2]
    # Replaced by a file that has those times too.
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
def test_a_half_written_file_does_not_count_as_one_with_fewer_entries(home: Path) -> None:
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
def test_a_file_that_never_stops_changing_is_still_read(home: Path) -> None:
    watcher = CronsFileWatcher(write_crons(home, ""))
    results = []
    for number in range(1, 7):
        write_crons(home, make_entry_text(number) + "#" * number)
        results.append(check_ids(watcher))
    assert results == [None, None, [3], None, None, [6]]


def test_an_unreadable_file_is_a_mistake_and_not_an_empty_file(home: Path) -> None:
    path = write_crons(home, make_entry_text(1))
    path.unlink()
    path.symlink_to(path)
    (mistake,) = CronsFileWatcher(path).read_file().mistakes
    assert mistake.text.startswith("it cannot be read: Too many levels")


def parse_single_entry(text: str) -> CronEntry:
    (entry,) = parse_crons_file(text).entries
    return entry


@pytest.mark.req("cron.once.removed")
def test_an_entry_is_removed_only_if_unchanged_even_beside_mistakes(home: Path) -> None:
    wrong = make_entry_text(7, "never")
    path = write_crons(home, wrong + make_entry_text(1) + make_entry_text(2))
    watcher = CronsFileWatcher(path)
    assert watcher.remove_entry(parse_single_entry(make_entry_text(1)))
    assert path.read_text() == wrong + make_entry_text(2)


@pytest.mark.req("cron.once.removed")
def test_removing_a_missing_entry_is_no_error_unless_the_file_has_mistakes(home: Path) -> None:
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
def test_any_of_a_thousand_entries_can_be_removed(home: Path) -> None:
    texts = [f"# {number}\n{make_entry_text(number)}" for number in range(1000)]
    path = write_crons(home, "".join(texts))
    watcher = CronsFileWatcher(path)
    assert len(watcher.read_file().entries) == 1000
    removed = random.Random(1).randrange(1000)
    assert watcher.remove_entry(parse_single_entry(make_entry_text(removed)))
    assert path.read_text() == "".join(
        f"# {number}\n" if number == removed else text for number, text in enumerate(texts)
    )
