"""Manifest: which conversations are in the index, under which number, and how far they were read.

A small SQLite file beside the shelves, written after each of their commits: a commit costs what it
brings, however many conversations there are. Any thread may use it.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from crabtalk.storage import ConversationMeta, Pair

from .tantivy_index import DamagedIndexError

if TYPE_CHECKING:  # imported late, like tantivy
    import sqlite3

# Of what the shelves hold and how it got there: another one is made anew.
VERSION = "2"
MAX_CACHED_NUMBERS = 4096
# What SQLite says of the file's surroundings rather than of the file: permissions, locks, reading,
# writing, a full disk.
TRANSIENT_ERROR_CODES = {3, 5, 6, 8, 10, 13, 14}
TABLES = """
    CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS conversations (
        number INTEGER PRIMARY KEY,
        handle TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        sender TEXT NOT NULL,
        origin TEXT NOT NULL,
        position INTEGER NOT NULL,
        version INTEGER NOT NULL,
        next_id INTEGER NOT NULL,
        tool_results INTEGER NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        message_count INTEGER NOT NULL,
        title TEXT NOT NULL,
        folded INTEGER NOT NULL,
        archived_at TEXT NOT NULL,
        documents INTEGER NOT NULL,
        length INTEGER NOT NULL,
        title_length INTEGER NOT NULL,
        summary_length INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX IF NOT EXISTS pairs ON conversations (agent, sender);
    CREATE TABLE IF NOT EXISTS removals (number INTEGER PRIMARY KEY);
"""


class IndexedConversation(msgspec.Struct):
    """A conversation, as far as it was read."""

    number: int
    handle: str
    agent: str
    sender: str
    origin: str
    position: int = 0
    version: int = 0
    next_id: int = 0
    tool_results: bool = False  # whether those are in the index
    created_at: str = ""
    updated_at: str = ""
    message_count: int = 0
    title: str = ""
    folded: int = 0  # the first message after those that the last summary stands for
    archived_at: str = ""
    documents: int = 0  # messages that can be found
    length: int = 0  # terms in them
    title_length: int = 0
    summary_length: int = 0

    @property
    def pair(self) -> Pair:
        return Pair(self.agent, self.sender)

    @property
    def meta(self) -> ConversationMeta:
        return ConversationMeta(
            self.agent,
            self.sender,
            created_at=self.created_at,
            title=self.title,
            updated_at=self.updated_at,
            message_count=self.message_count,
        )


class IndexTotals(msgspec.Struct):
    """Of all conversations: what BM25 needs to know besides the shelves' own numbers."""

    documents: int = 0
    length: int = 0
    titles: int = 0
    title_length: int = 0
    summaries: int = 0
    summary_length: int = 0

    def add_conversation(self, row: IndexedConversation, sign: int) -> None:
        self.documents += sign * row.documents
        self.length += sign * row.length
        self.titles += sign * (row.title_length > 0)
        self.title_length += sign * row.title_length
        self.summaries += sign * (row.summary_length > 0)
        self.summary_length += sign * row.summary_length


COLUMNS = IndexedConversation.__struct_fields__
SELECT_CONVERSATION = f"SELECT {', '.join(COLUMNS)} FROM conversations"  # noqa: S608
SELECT_META = (
    "SELECT number, handle, agent, sender, created_at, title, updated_at, message_count "
    "FROM conversations"
)
UPSERT_CONVERSATION = (
    f"INSERT OR REPLACE INTO conversations ({', '.join(COLUMNS)}) "  # noqa: S608
    f"VALUES ({', '.join('?' * len(COLUMNS))})"
)


class IndexManifest:
    def __init__(self, file: Path | None) -> None:
        """Raises DamagedError for one that cannot be read, or that is of another version."""
        import sqlite3

        self._lock = threading.Lock()
        self._number_cache: dict[Pair, int] = {}
        self._sqlite_error = sqlite3.Error
        self._file = file
        try:
            self._connection = sqlite3.connect(
                file or ":memory:", check_same_thread=False, isolation_level=None
            )
        except sqlite3.Error as error:
            raise DamagedIndexError(f"the manifest cannot be opened: {error}") from None
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._locked_connection() as connection:
            # After a power cut a few commits may be missing, which is as if they never were.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(TABLES)
            version = read_fact(connection, "version")
            if version is None:
                connection.execute(*build_fact_upsert("version", VERSION))
            elif version != VERSION:
                raise DamagedIndexError(f"the index is of version {version}, not {VERSION}")
            self.next_number = int(read_fact(connection, "next_number") or 1)
            self.stamps: list[int] = [
                int(n) for n in (read_fact(connection, "stamps") or "").split()
            ]
            totals = read_fact(connection, "totals")
            self.totals = msgspec.json.decode(totals, type=IndexTotals) if totals else IndexTotals()

    @contextlib.contextmanager
    def _locked_connection(self) -> "Iterator[sqlite3.Connection]":
        with self._lock:
            try:
                yield self._connection
            except (self._sqlite_error, msgspec.MsgspecError, ValueError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in TRANSIENT_ERROR_CODES:
                    raise OSError(f"the manifest cannot be used: {error}") from None
                raise DamagedIndexError(f"the manifest cannot be used: {error}") from None

    def find_by_number(self, number: int) -> IndexedConversation | None:
        return self._find_one("number = ?", number)

    def load_metas(self, numbers: Sequence[int]) -> dict[int, tuple[str, ConversationMeta]]:
        """By number, of those that there are: the handle, and what is shown of a conversation."""
        marks = ", ".join("?" * len(numbers))
        with self._locked_connection() as connection:
            found = connection.execute(f"{SELECT_META} WHERE number IN ({marks})", numbers)
            return {number: (handle, ConversationMeta(*rest)) for number, handle, *rest in found}

    def find_number(self, pair: Pair) -> int | None:
        """The same as of the row, without reading one where much is said."""
        if (number := self._number_cache.get(pair)) is not None:
            return number
        with self._locked_connection() as connection:
            query = "SELECT number FROM conversations WHERE agent = ? AND sender = ?"
            found = connection.execute(query, tuple(map(replace_surrogates, pair))).fetchone()
            if found is None:
                return None
            self._cache_number(pair, found[0])
            return int(found[0])

    def _cache_number(self, pair: Pair, number: int) -> None:
        if len(self._number_cache) >= MAX_CACHED_NUMBERS:
            self._number_cache.clear()
        self._number_cache[pair] = number

    def find_by_pair(self, pair: Pair) -> IndexedConversation | None:
        return self._find_one("agent = ? AND sender = ?", *map(replace_surrogates, pair))

    def find_by_handle(self, handle: str) -> IndexedConversation | None:
        return self._find_one("handle = ?", handle)

    def _find_one(self, where: str, *values: Any) -> IndexedConversation | None:
        with self._locked_connection() as connection:
            found = connection.execute(f"{SELECT_CONVERSATION} WHERE {where}", values).fetchone()
        return IndexedConversation(*found) if found is not None else None

    def load_read_state(self) -> dict[str, tuple[int, str, bool]]:
        """By handle: version, agent, and whether tool results are in."""
        with self._locked_connection() as connection:
            return {
                handle: (version, agent, bool(tool_results))
                for handle, version, agent, tool_results in connection.execute(
                    "SELECT handle, version, agent, tool_results FROM conversations"
                )
            }

    def list_agents(self) -> list[tuple[str, bool]]:
        """Whose conversations there are, with tool results or without."""
        with self._locked_connection() as connection:
            query = "SELECT DISTINCT agent, tool_results FROM conversations"
            return [(agent, bool(results)) for agent, results in connection.execute(query)]

    def load_cursor(self) -> str:
        """Up to which what others changed is in the index, as storage says it."""
        with self._locked_connection() as connection:
            return read_fact(connection, "cursor") or ""

    def set_cursor(self, cursor: str) -> None:
        with self._locked_connection() as connection:
            connection.execute(*build_fact_upsert("cursor", cursor))

    def remove(self, numbers: list[int]) -> None:
        """These are gone, though the shelves may have them until they are committed."""
        totals = msgspec.structs.replace(self.totals)
        rows = [row for row in map(self.find_by_number, numbers) if row is not None]
        for row in rows:
            totals.add_conversation(row, -1)
        marks = [(number,) for number in numbers]
        with self._locked_connection() as connection, begin_transaction(connection):
            connection.execute(*build_fact_upsert("totals", msgspec.json.encode(totals).decode()))
            connection.executemany("DELETE FROM conversations WHERE number = ?", marks)
            connection.executemany("INSERT OR IGNORE INTO removals VALUES (?)", marks)
            for row in rows:
                self._number_cache.pop(row.pair, None)

    def list_removals(self) -> list[int]:
        """What shelves may still have of those removed."""
        with self._locked_connection() as connection:
            return [number for (number,) in connection.execute("SELECT number FROM removals")]

    def commit(
        self, rows: list[IndexedConversation], totals: IndexTotals, stamps: list[int]
    ) -> None:
        """That the shelves, by their stamps, are this far."""
        with self._locked_connection() as connection, begin_transaction(connection):
            connection.execute("DELETE FROM removals")
            connection.executemany(UPSERT_CONVERSATION, map(to_column_values, rows))
            connection.execute(*build_fact_upsert("next_number", self.next_number))
            connection.execute(*build_fact_upsert("stamps", " ".join(map(str, stamps))))
            connection.execute(*build_fact_upsert("totals", msgspec.json.encode(totals).decode()))
            for row in rows:
                self._cache_number(row.pair, row.number)
        self.totals = totals
        self.stamps = stamps

    def verify(self) -> None:
        """Reads all of it. Raises DamagedError."""
        import sqlite3

        if self._file is None:
            return
        try:
            with contextlib.closing(sqlite3.connect(self._file)) as connection:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            found = str(error)
        if found != "ok":
            raise DamagedIndexError(f"the manifest is damaged: {found}")

    def close(self) -> None:
        with self._lock:
            self._connection.close()


@contextlib.contextmanager
def begin_transaction(connection: "sqlite3.Connection") -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def read_fact(connection: "sqlite3.Connection", name: str) -> Any:
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return row[0] if row is not None else None


def build_fact_upsert(name: str, value: int | str) -> tuple[str, tuple[str, int | str]]:
    return "INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value)


def to_column_values(row: IndexedConversation) -> tuple[Any, ...]:
    return tuple(
        replace_surrogates(v) if isinstance(v, str) else v for v in msgspec.structs.astuple(row)
    )


def replace_surrogates(text: str) -> str:
    """As UTF-8 can hold it; half a surrogate pair it cannot."""
    return text.encode(errors="replace").decode()
