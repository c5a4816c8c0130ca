"""Library: three shelves and their manifest, fed from the logs. Blocks; one thread writes.

What is taken in can be found after `commit`. A crash at any moment leaves what the last commit
left, or some of what the next one was to bring; the manifest tells which, and the logs have the
rest: nothing is missing and nothing is there twice.
"""

import time
from pathlib import Path

import msgspec

from crabtalk.storage import (
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Pair,
    RecordSlice,
    make_log_name,
)

from .manifest import IndexedConversation, IndexManifest, IndexTotals
from .searchable_text import (
    MESSAGE_WEIGHTS,
    SUMMARY_WEIGHT,
    TITLE_WEIGHT,
    extract_text,
    hash_name,
    parse_milliseconds,
)
from .tantivy_index import (
    MAX_MESSAGE_ID,
    DamagedIndexError,
    TantivyIndex,
    TantivySearcher,
    make_uid,
)
from .terms import extract_terms

# What each has, and how much that may count.
INDEX_WEIGHTS = {
    "messages": MESSAGE_WEIGHTS,
    "titles": (TITLE_WEIGHT,),
    "summaries": (SUMMARY_WEIGHT,),
}
MAX_UID = 2**64 - 1
# Records after which other threads get their turn, rather than when the interpreter comes to it:
# the event loop should not notice that logs are being read.
YIELD_EVERY = 64


class IndexView(msgspec.Struct, frozen=True):
    """What could be found at one commit."""

    messages: TantivySearcher
    titles: TantivySearcher
    summaries: TantivySearcher
    totals: IndexTotals

    @classmethod
    def from_searchers(cls, searchers: list[TantivySearcher], totals: IndexTotals) -> "IndexView":
        messages, titles, summaries = searchers
        return cls(messages, titles, summaries, totals)


class IndexBatch(msgspec.Struct):
    """What the next commit brings."""

    rows: dict[str, IndexedConversation] = msgspec.field(default_factory=dict)  # by handle
    handles: dict[Pair, str] = msgspec.field(default_factory=dict)
    removed: set[int] = msgspec.field(default_factory=set)
    added: int = 0
    is_repair: bool = False  # what a crash left half done

    def __bool__(self) -> bool:
        return bool(self.rows or self.removed or self.is_repair)


class IndexStore:
    def __init__(self, directory: Path | None) -> None:
        """Raises DamagedError when it has to be made anew, and OSError."""
        self._directory = directory
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.messages, self.titles, self.summaries = self._indexes = [
            TantivyIndex(directory / name if directory is not None else None, weights)
            for name, weights in INDEX_WEIGHTS.items()
        ]
        self.manifest = IndexManifest(directory / "manifest" if directory is not None else None)
        self._totals = msgspec.structs.replace(self.manifest.totals)
        self._batch = IndexBatch()
        self._records_read = 0
        self._is_index_suspect = False
        self._checked_numbers: set[int] = set()
        try:
            self._check_stamps()
        except BaseException:
            self.manifest.close()
            raise

    @staticmethod
    def wipe(directory: Path | None) -> None:
        if directory is not None:
            import shutil  # late: it loads every way to compress

            shutil.rmtree(directory, ignore_errors=True)

    @property
    def uncommitted(self) -> int:
        return self._batch.added

    @property
    def is_dirty(self) -> bool:
        return bool(self._batch)

    def view(self) -> IndexView:
        searchers = [shelf.searcher() for shelf in self._indexes]
        return IndexView.from_searchers(searchers, self.manifest.totals)

    # ── Taking in ───────────────────────────────────────────────────────────────────────────

    def find_by_handle(self, handle: str) -> IndexedConversation | None:
        return self._batch.rows.get(handle) or self._unless_removed(
            self.manifest.find_by_handle(handle)
        )

    def find_by_pair(self, pair: Pair) -> IndexedConversation | None:
        handle = self._batch.handles.get(pair)
        if handle is not None and (row := self._batch.rows.get(handle)) is not None:
            return row
        return self._unless_removed(self.manifest.find_by_pair(pair))

    def _unless_removed(self, row: IndexedConversation | None) -> IndexedConversation | None:
        return row if row is not None and row.number not in self._batch.removed else None

    def plan_reads(self, deleted: list[Pair], stale: list[str], said: list[Pair]) -> dict[str, int]:
        """Removes some, and says of others which log to read from where."""
        for pair in deleted:
            if (row := self.find_by_pair(pair)) is not None:
                self.remove(row)
        self.remove_all(stale)
        rows = [(pair, self.find_by_pair(pair)) for pair in said]
        return dict(
            (row.handle, row.position) if row is not None else (make_log_name(pair), 0)
            for pair, row in rows
        )

    def find_positions(self, handles: list[str]) -> dict[str, int]:
        rows = [(handle, self.find_by_handle(handle)) for handle in handles]
        return {handle: row.position if row is not None else 0 for handle, row in rows}

    def find_outdated(self, versions: dict[str, int]) -> list[str]:
        """Of logs by handle, those that have another version than the one that was read."""
        rows = [(handle, self.find_by_handle(handle)) for handle in versions]
        return [h for h, row in rows if row is None or row.version != versions[h]]

    def find_unknown(self, pairs: list[Pair]) -> list[Pair]:
        return [pair for pair in pairs if self.find_by_pair(pair) is None]

    def ingest_all(self, read: list[tuple[str, RecordSlice | None, bool]]) -> dict[str, int]:
        """What was read of several logs. Returns those to go on with, and from where."""
        again: dict[str, int] = {}
        for handle, followed, tool_results in read:
            if followed is None:
                self.remove_all([handle])
            elif not self.ingest(handle, followed, tool_results=tool_results):
                again[handle] = 0
            elif followed.has_more:
                again[handle] = followed.position
        return again

    def ingest(self, handle: str, followed: RecordSlice, *, tool_results: bool) -> bool:
        """What was read of a log. False when it has to be read from the beginning."""
        row = self._continue_conversation(handle, followed, tool_results)
        if row is None:
            if followed.start:
                return False
            row = self._begin_conversation(handle, followed, tool_results)
            if row is None:
                return True
        self._totals.add_conversation(row, -1)
        keys = hash_name(row.agent), hash_name(row.sender)
        title, marker = row.title, None
        for position, record in followed.records:
            self._records_read += 1
            if self._records_read % YIELD_EVERY == 0:
                time.sleep(0)
            if isinstance(record, MessageRecord):
                self._add_message(row, position, record, keys)
                row.message_count, row.updated_at = record.id + 1, record.at
            elif isinstance(record, MetaRecord):
                self._apply_meta(row, record)
                title = title if record.title is None else record.title
            elif isinstance(record, MarkerRecord):
                marker = record
                row.updated_at = record.archived_at
        if title != row.title or self._may_have_more(row):
            self._index_title(row, title, keys)
        if marker is not None:
            self._index_summary(row, marker, keys)
        self._mark_checked(row.number)
        row.position = followed.position
        row.version = 0 if followed.has_more else followed.version
        self._totals.add_conversation(row, 1)
        self._batch.rows[handle] = row
        self._batch.handles[row.pair] = handle
        return True

    def _continue_conversation(
        self, handle: str, followed: RecordSlice, tool_results: bool
    ) -> IndexedConversation | None:
        """The row these records continue; one they do not is removed."""
        row = self.find_by_handle(handle)
        if row is None:
            return None
        first = next((r.id for _, r in followed.records if isinstance(r, MessageRecord)), None)
        if (
            row.pair != followed.pair
            or row.origin != followed.origin
            or row.position != followed.start
            or row.tool_results != tool_results
            or (first is not None and first < row.next_id)
        ):
            self.remove(row)
            return None
        if self._may_have_more(row):
            # What a commit brought that the manifest never heard of comes again now.
            first_uid = make_uid(row.number, row.next_id)
            self.messages.remove_range(first_uid, make_uid(row.number, MAX_MESSAGE_ID))
        return row

    def _begin_conversation(
        self, handle: str, followed: RecordSlice, tool_results: bool
    ) -> IndexedConversation | None:
        """A row for a log not read before; None where another log is this pair's."""
        other = self.find_by_pair(followed.pair)
        if other is not None:
            if handle != make_log_name(followed.pair):
                return None
            self.remove(other)
        number = self.manifest.next_number
        self.manifest.next_number += 1
        self._mark_checked(number)
        return IndexedConversation(
            number, handle, *followed.pair, followed.origin, tool_results=tool_results
        )

    def _may_have_more(self, row: IndexedConversation) -> bool:
        """Whether shelves may have more of it than the manifest knows."""
        return self._is_index_suspect and row.number not in self._checked_numbers

    def _mark_checked(self, number: int) -> None:
        if self._is_index_suspect:
            self._checked_numbers.add(number)

    def _apply_meta(self, row: IndexedConversation, record: MetaRecord) -> None:
        meta = row.meta.apply_record(record)
        row.created_at = meta.created_at
        row.updated_at = meta.updated_at
        row.message_count = meta.message_count

    def _add_message(
        self, row: IndexedConversation, position: int, record: MessageRecord, keys: tuple[int, int]
    ) -> None:
        if record.id < row.next_id or record.id >= MAX_MESSAGE_ID:
            return
        row.next_id = record.id + 1
        text, weight = extract_text(record.message, tool_results=row.tool_results)
        terms = extract_terms(text)
        if not terms:
            return
        at = parse_milliseconds(record.at)
        self.messages.add(make_uid(row.number, record.id), terms, weight, at, position, *keys)
        row.documents += 1
        row.length += len(terms)
        self._batch.added += 1

    def _index_title(self, row: IndexedConversation, title: str, keys: tuple[int, int]) -> None:
        if row.title_length or self._is_index_suspect:
            self.titles.remove(row.number)
        terms = extract_terms(title)
        row.title, row.title_length = title, len(terms)
        if terms:
            at = parse_milliseconds(row.created_at)
            self.titles.add(make_uid(row.number, 0), terms, TITLE_WEIGHT, at, 0, *keys)

    def _index_summary(
        self, row: IndexedConversation, marker: MarkerRecord, keys: tuple[int, int]
    ) -> None:
        """Found, it leads to the last message it stands for."""
        if row.summary_length or self._is_index_suspect:
            self.summaries.remove(row.number)
        terms = extract_terms(marker.summary)
        row.folded, row.archived_at = marker.end_id, marker.archived_at
        row.summary_length = len(terms)
        if terms:
            uid = make_uid(row.number, max(0, marker.end_id - 1))
            at = parse_milliseconds(marker.archived_at)
            self.summaries.add(uid, terms, SUMMARY_WEIGHT, at, 0, *keys)

    def remove_all(self, handles: list[str]) -> None:
        for handle in handles:
            if (row := self.find_by_handle(handle)) is not None:
                self.remove(row)

    def remove(self, row: IndexedConversation) -> None:
        # Only where there is something of it: the engine keeps each removal until a document comes
        # after it, and where there are no titles none would.
        held = (row.documents, row.title_length, row.summary_length)
        for shelf, count in zip(self._indexes, held, strict=True):
            if count or self._is_index_suspect:
                shelf.remove(row.number)
        self._totals.add_conversation(row, -1)
        self._batch.rows.pop(row.handle, None)
        self._batch.removed.add(row.number)

    # ── Keeping ─────────────────────────────────────────────────────────────────────────────

    def commit(self) -> tuple[IndexView, list[IndexedConversation]]:
        """What was taken in can be found, in the view returned. Raises DamagedError, OSError."""
        batch = self._batch
        if batch.removed:
            # Before the shelves: what is gone from them must not be taken for read.
            self.manifest.remove(sorted(batch.removed))
        try:
            searchers = [shelf.commit() for shelf in self._indexes]
            stamps = [shelf.stamp for shelf in self._indexes]
        except ValueError as error:  # what tantivy says of a full disk, too
            raise OSError(f"the index cannot be written: {error}") from None
        totals = msgspec.structs.replace(self._totals)
        rows = list(batch.rows.values())
        # In doubt it stays, in its next life too, until all was looked at.
        self.manifest.commit(
            rows, totals, self.manifest.stamps if self._is_index_suspect else stamps
        )
        self._batch = IndexBatch()
        return IndexView.from_searchers(searchers, totals), rows

    @property
    def is_suspect(self) -> bool:
        """Whether shelves may have something that the manifest knows nothing of."""
        return self._is_index_suspect

    def mark_consistent(self) -> None:
        """Every log that is not as the manifest has it was read to its end: what was too much is
        gone."""
        self._is_index_suspect = False
        self._checked_numbers.clear()
        stamps = [shelf.stamp for shelf in self._indexes]
        self.manifest.commit([], self.manifest.totals, stamps)

    def release_old_files(self) -> None:
        """Of what only older views needed, when there are none."""
        for shelf in self._indexes:
            shelf.release_old_files()

    def _check_stamps(self) -> None:
        stamps = [shelf.stamp for shelf in self._indexes]
        known = self.manifest.stamps or [0] * len(stamps)
        if self._directory is None or stamps == known:
            self._finish_removals()
            return
        behind = any(stamp < seen for stamp, seen in zip(stamps, known, strict=True))
        if behind or not self.manifest.stamps:
            raise DamagedIndexError("the manifest is not of this index")
        self._is_index_suspect = self._batch.is_repair = True
        unknown = make_uid(self.manifest.next_number, 0)
        for shelf in self._indexes:
            shelf.remove_range(unknown, MAX_UID)
        self._finish_removals()

    def _finish_removals(self) -> None:
        for number in self.manifest.list_removals():
            self._batch.is_repair = True
            for shelf in self._indexes:
                shelf.remove(number)

    def verify(self) -> None:
        """Reads all of it, which takes a while. Raises DamagedError."""
        self.manifest.verify()
        for shelf in self._indexes:
            shelf.verify()

    def close(self) -> None:
        """What was not committed is forgotten."""
        for shelf in self._indexes:
            shelf.close()
        self.manifest.close()
