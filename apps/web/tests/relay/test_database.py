"""The database: jobs are atomic, and answered only after the commit."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from crabtalk_web.relay import RelayConfigError, RelayError
from crabtalk_web.relay.database import RelayDatabase
from crabtalk_web.relay.schema import MIGRATIONS, migrate_database


def add_account(db: sqlite3.Connection, key: str) -> None:
    db.execute("INSERT INTO accounts (id, public_key, created_at) VALUES (?, ?, 0)", (key, key))


def count_accounts(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM accounts").fetchone()[0])


@pytest.mark.req("relay.database.whole")
async def test_a_failed_job_leaves_nothing_and_does_not_affect_others(tmp_path: Path) -> None:
    database = RelayDatabase(tmp_path / "relay.db")

    def half(db: sqlite3.Connection) -> None:
        add_account(db, "half")
        raise RelayError(400, "no")

    results = await asyncio.gather(
        database.write(add_account, "one"),
        database.write(half),
        database.write(add_account, "two"),
        database.write(add_account, "one"),
        return_exceptions=True,
    )
    assert [type(each) for each in results] == [
        type(None),
        RelayError,
        type(None),
        sqlite3.IntegrityError,
    ]
    assert await database.read(count_accounts) == 2
    await database.close()


@pytest.mark.req("relay.database.together")
async def test_waiting_jobs_share_a_flush(tmp_path: Path) -> None:
    database = RelayDatabase(tmp_path / "relay.db")
    begun, go = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        begun.set()
        go.wait(20)

    first = asyncio.ensure_future(database.write(hold))
    await asyncio.to_thread(begun.wait, 20)
    rest = [asyncio.ensure_future(database.write(add_account, str(n))) for n in range(100)]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, *rest)
    assert database.statistics.transactions == 2
    await database.close()


@pytest.mark.req("relay.database.kept")
async def test_jobs_queued_before_closing_are_kept(tmp_path: Path) -> None:
    database = RelayDatabase(tmp_path / "relay.db")
    works = [asyncio.ensure_future(database.write(add_account, str(n))) for n in range(50)]
    await asyncio.sleep(0)
    await database.close()
    await asyncio.gather(*works)
    with pytest.raises(RelayError, match="stopping"):
        await database.write(add_account, "late")
    reopened = RelayDatabase(tmp_path / "relay.db")
    assert await reopened.read(count_accounts) == 50
    await reopened.close()


@pytest.mark.req("relay.database.full")
async def test_a_full_disk_is_reported_as_an_error(tmp_path: Path) -> None:
    database = RelayDatabase(tmp_path / "relay.db")

    def shrink(db: sqlite3.Connection) -> None:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")

    await database.write(shrink)
    with pytest.raises(RelayError, match="look at its disk") as failed:
        for n in range(1000):
            await database.write(add_account, f"{n}" * 500)
    assert failed.value.status == 507
    count = await database.read(count_accounts)

    def grow(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA max_page_count = 1000000")

    await database.write(grow)
    await database.write(add_account, "again")
    assert await database.read(count_accounts) == count + 1
    await database.close()


@pytest.mark.req("relay.schema.versions")
def test_new_and_old_databases_get_the_latest_version() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate_database(db)
    assert db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    db.execute("INSERT INTO challenges VALUES (x'00', 1)")
    later = (*MIGRATIONS, "ALTER TABLE challenges ADD COLUMN note TEXT; CREATE TABLE new (a)")
    migrate_database(db, later)
    assert db.execute("PRAGMA user_version").fetchone()[0] == len(later)
    assert db.execute("SELECT * FROM challenges").fetchall() == [(b"\0", 1, None)]
    migrate_database(db, later)
    db.close()


@pytest.mark.req("relay.schema.versions")
def test_a_migration_that_fails_leaves_the_database_as_it_was() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate_database(db)
    broken = (*MIGRATIONS, "CREATE TABLE new (a); CREATE TABLE accounts (a)")
    with pytest.raises(sqlite3.OperationalError):
        migrate_database(db, broken)
    assert db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'new'").fetchone()[0] == 0
    db.close()


@pytest.mark.req("relay.schema.versions")
def test_a_database_of_a_later_relay_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RelayConfigError, match="update crabtalk-web"):
        RelayDatabase(path)


@pytest.mark.req("relay.start")
def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    path.write_text("something else entirely, and long enough to be a header" * 10)
    with pytest.raises(RelayConfigError, match=r"cannot open .*relay.db"):
        RelayDatabase(path)
