"""IndexManifest: which conversations are indexed, under which numbers, and how far they were read.

A small SQLite file beside the indexes, written after each of their commits. A commit costs as much
as it changes, however many conversations there are. Any thread may use it.
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

# The version of the indexes' content and structure. An index of another version is rebuilt.
VERSION = "2"
MAX_CACHED_NUMBERS = 4096
# SQLite errors that do not mean a damaged file: permissions, locks, reading, writing, a full disk.
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
    """A conversation, and how far it was read."""

    number: int
    handle: str
    agent: str
    sender: str
    origin: str
    position: int = 0
    version: int = 0
    next_id: int = 0
    tool_results: bool = False  # whether tool results are indexed
    created_at: str = ""
    updated_at: str = ""
    message_count: int = 0
    title: str = ""
    folded: int = 0  # the first message after those that the last summary covers
    archived_at: str = ""
    documents: int = 0  # searchable messages
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
    """Sums over all conversations, which BM25 needs besides the indexes' own numbers."""

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
        """Raises DamagedIndexError if it cannot be read, or has another version."""
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
            # After a power cut the last commits may be missing, as if they had not happened.
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
        """The handle and meta of each of these conversations that exists, by number."""
        marks = ", ".join("?" * len(numbers))
        with self._locked_connection() as connection:
            rows = connection.execute(f"{SELECT_META} WHERE number IN ({marks})", numbers)
            return {number: (handle, ConversationMeta(*rest)) for number, handle, *rest in rows}

    def find_number(self, pair: Pair) -> int | None:
        """The number of a conversation; from the cache if possible, as searches need many."""
        if (number := self._number_cache.get(pair)) is not None:
            return number
        with self._locked_connection() as connection:
            query = "SELECT number FROM conversations WHERE agent = ? AND sender = ?"
            row = connection.execute(query, tuple(map(replace_surrogates, pair))).fetchone()
            if row is None:
                return None
            self._cache_number(pair, row[0])
            return int(row[0])

    def _cache_number(self, pair: Pair, number: int) -> None:
        if len(self._number_cache) >= MAX_CACHED_NUMBERS:
            self._number_cache.clear()
        self._number_cache[pair] = number

    def find_by_pair(self, pair: Pair) -> IndexedConversation | None:
        return self._find_one("agent = ? AND sender = ?", *map(replace_surrogates, pair))

    def find_by_handle(self, handle: str) -> IndexedConversation | None:
        return self._find_one("handle = ?", handle)

    def _find_one(self, condition: str, *values: Any) -> IndexedConversation | None:
        with self._locked_connection() as connection:
            row = connection.execute(f"{SELECT_CONVERSATION} WHERE {condition}", values).fetchone()
        return IndexedConversation(*row) if row is not None else None

    def load_read_state(self) -> dict[str, tuple[int, str, bool]]:
        """By handle: the version, the agent, and whether tool results are indexed."""
        with self._locked_connection() as connection:
            return {
                handle: (version, agent, bool(tool_results))
                for handle, version, agent, tool_results in connection.execute(
                    "SELECT handle, version, agent, tool_results FROM conversations"
                )
            }

    def list_agents(self) -> list[tuple[str, bool]]:
        """The agents with conversations, each with whether its tool results are indexed."""
        with self._locked_connection() as connection:
            query = "SELECT DISTINCT agent, tool_results FROM conversations"
            return [(agent, bool(results)) for agent, results in connection.execute(query)]

    def load_cursor(self) -> str:
        """The storage cursor up to which changes by other daemons are indexed."""
        with self._locked_connection() as connection:
            return read_fact(connection, "cursor") or ""

    def set_cursor(self, cursor: str) -> None:
        with self._locked_connection() as connection:
            connection.execute(*build_fact_upsert("cursor", cursor))

    def remove(self, numbers: list[int]) -> None:
        """Remove conversations. The indexes may hold them until their next commit."""
        totals = msgspec.structs.replace(self.totals)
        rows = [row for row in map(self.find_by_number, numbers) if row is not None]
        for row in rows:
            totals.add_conversation(row, -1)
        parameters = [(number,) for number in numbers]
        with self._locked_connection() as connection, begin_transaction(connection):
            connection.execute(*build_fact_upsert("totals", msgspec.json.encode(totals).decode()))
            connection.executemany("DELETE FROM conversations WHERE number = ?", parameters)
            connection.executemany("INSERT OR IGNORE INTO removals VALUES (?)", parameters)
            for row in rows:
                self._number_cache.pop(row.pair, None)

    def list_removals(self) -> list[int]:
        """Removed conversations of which the indexes may still hold documents."""
        with self._locked_connection() as connection:
            return [number for (number,) in connection.execute("SELECT number FROM removals")]

    def commit(
        self, rows: list[IndexedConversation], totals: IndexTotals, stamps: list[int]
    ) -> None:
        """Record the state of the indexes at their last commit, which the stamps identify."""
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
        """Read all of it. Raises DamagedIndexError."""
        import sqlite3

        if self._file is None:
            return
        try:
            with contextlib.closing(sqlite3.connect(self._file)) as connection:
                (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            result = str(error)
        if result != "ok":
            raise DamagedIndexError(f"the manifest is damaged: {result}")

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
    """Replace surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()
