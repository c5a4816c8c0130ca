"""IndexStore: three tantivy indexes and their manifest, fed from the logs. Blocking; one writer.

Ingested records can be found after `commit`. After a crash at any moment the index holds the last
commit, and maybe parts of the next one. The manifest tells which, and the logs have the rest, so
nothing is missing and nothing is there twice.
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

# The weights that documents of each index may have.
INDEX_WEIGHTS = {
    "messages": MESSAGE_WEIGHTS,
    "titles": (TITLE_WEIGHT,),
    "summaries": (SUMMARY_WEIGHT,),
}
MAX_UID = 2**64 - 1
# Records after which the thread yields, sooner than the interpreter would switch threads: reading
# logs must not delay the event loop.
YIELD_EVERY = 64


class IndexView(msgspec.Struct, frozen=True):
    """The searchable state at one commit."""

    messages: TantivySearcher
    titles: TantivySearcher
    summaries: TantivySearcher
    totals: IndexTotals

    @classmethod
    def from_searchers(cls, searchers: list[TantivySearcher], totals: IndexTotals) -> "IndexView":
        messages, titles, summaries = searchers
        return cls(messages, titles, summaries, totals)


class IndexBatch(msgspec.Struct):
    """The changes of the next commit."""

    rows: dict[str, IndexedConversation] = msgspec.field(default_factory=dict)  # by handle
    handles: dict[Pair, str] = msgspec.field(default_factory=dict)
    removed: set[int] = msgspec.field(default_factory=set)
    added: int = 0
    is_repair: bool = False  # it completes what a crash left unfinished

    def __bool__(self) -> bool:
        return bool(self.rows or self.removed or self.is_repair)


class IndexStore:
    def __init__(self, directory: Path | None) -> None:
        """Raises DamagedIndexError when the index must be rebuilt, and OSError."""
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
            import shutil  # late: it loads all compression modules

            shutil.rmtree(directory, ignore_errors=True)

    @property
    def uncommitted(self) -> int:
        return self._batch.added

    @property
    def is_dirty(self) -> bool:
        return bool(self._batch)

    def view(self) -> IndexView:
        searchers = [index.searcher() for index in self._indexes]
        return IndexView.from_searchers(searchers, self.manifest.totals)

    # ── Reading logs in ─────────────────────────────────────────────────────────────────────

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

    def plan_reads(
        self, deleted: list[Pair], stale: list[str], active: list[Pair]
    ) -> dict[str, int]:
        """Remove the deleted and stale ones; return the log and position to read for the others."""
        for pair in deleted:
            if (row := self.find_by_pair(pair)) is not None:
                self.remove(row)
        self.remove_all(stale)
        rows = [(pair, self.find_by_pair(pair)) for pair in active]
        return dict(
            (row.handle, row.position) if row is not None else (make_log_name(pair), 0)
            for pair, row in rows
        )

    def find_positions(self, handles: list[str]) -> dict[str, int]:
        rows = [(handle, self.find_by_handle(handle)) for handle in handles]
        return {handle: row.position if row is not None else 0 for handle, row in rows}

    def find_outdated(self, versions: dict[str, int]) -> list[str]:
        """The handles whose log has another version than the one that was read."""
        rows = [(handle, self.find_by_handle(handle)) for handle in versions]
        return [h for h, row in rows if row is None or row.version != versions[h]]

    def find_unknown(self, pairs: list[Pair]) -> list[Pair]:
        return [pair for pair in pairs if self.find_by_pair(pair) is None]

    def ingest_all(self, slices: list[tuple[str, RecordSlice | None, bool]]) -> dict[str, int]:
        """Ingest slices of several logs. Returns the logs to continue with, and from where."""
        positions: dict[str, int] = {}
        for handle, record_slice, tool_results in slices:
            if record_slice is None:
                self.remove_all([handle])
            elif not self.ingest(handle, record_slice, tool_results=tool_results):
                positions[handle] = 0
            elif record_slice.has_more:
                positions[handle] = record_slice.position
        return positions

    def ingest(self, handle: str, record_slice: RecordSlice, *, tool_results: bool) -> bool:
        """Ingest a slice of a log. Returns False when the log must be read from the beginning."""
        row = self._continue_conversation(handle, record_slice, tool_results)
        if row is None:
            if record_slice.start:
                return False
            row = self._begin_conversation(handle, record_slice, tool_results)
            if row is None:
                return True
        self._totals.add_conversation(row, -1)
        keys = hash_name(row.agent), hash_name(row.sender)
        title, marker = row.title, None
        for position, record in record_slice.records:
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
        row.position = record_slice.position
        row.version = 0 if record_slice.has_more else record_slice.version
        self._totals.add_conversation(row, 1)
        self._batch.rows[handle] = row
        self._batch.handles[row.pair] = handle
        return True

    def _continue_conversation(
        self, handle: str, record_slice: RecordSlice, tool_results: bool
    ) -> IndexedConversation | None:
        """The row that these records continue. A row that they do not continue is removed."""
        row = self.find_by_handle(handle)
        if row is None:
            return None
        first = next((r.id for _, r in record_slice.records if isinstance(r, MessageRecord)), None)
        if (
            row.pair != record_slice.pair
            or row.origin != record_slice.origin
            or row.position != record_slice.start
            or row.tool_results != tool_results
            or (first is not None and first < row.next_id)
        ):
            self.remove(row)
            return None
        if self._may_have_more(row):
            # A commit the manifest does not know added these; they are about to be added again.
            first_uid = make_uid(row.number, row.next_id)
            self.messages.remove_range(first_uid, make_uid(row.number, MAX_MESSAGE_ID))
        return row

    def _begin_conversation(
        self, handle: str, record_slice: RecordSlice, tool_results: bool
    ) -> IndexedConversation | None:
        """A row for a log not read before; None if the pair already has another log."""
        other = self.find_by_pair(record_slice.pair)
        if other is not None:
            if handle != make_log_name(record_slice.pair):
                return None
            self.remove(other)
        number = self.manifest.next_number
        self.manifest.next_number += 1
        self._mark_checked(number)
        return IndexedConversation(
            number, handle, *record_slice.pair, record_slice.origin, tool_results=tool_results
        )

    def _may_have_more(self, row: IndexedConversation) -> bool:
        """Whether the indexes may have more of this conversation than the manifest knows."""
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
        """Index a summary. A hit leads to the last message that the summary covers."""
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
        # Skip indexes without documents of it: tantivy keeps a removal until a later document is
        # added, and an index without titles may never get one.
        counts = (row.documents, row.title_length, row.summary_length)
        for index, count in zip(self._indexes, counts, strict=True):
            if count or self._is_index_suspect:
                index.remove(row.number)
        self._totals.add_conversation(row, -1)
        self._batch.rows.pop(row.handle, None)
        self._batch.removed.add(row.number)

    # ── Committing ──────────────────────────────────────────────────────────────────────────

    def commit(self) -> tuple[IndexView, list[IndexedConversation]]:
        """Make the ingested records searchable. Raises DamagedIndexError, OSError.

        Returns the new view and the rows that changed.
        """
        batch = self._batch
        if batch.removed:
            # Before the indexes: after a crash, removed conversations must not count as read.
            self.manifest.remove(sorted(batch.removed))
        try:
            searchers = [index.commit() for index in self._indexes]
            stamps = [index.stamp for index in self._indexes]
        except ValueError as error:  # tantivy raises this also for a full disk
            raise OSError(f"the index cannot be written: {error}") from None
        totals = msgspec.structs.replace(self._totals)
        rows = list(batch.rows.values())
        # While in doubt, the old stamps stay, across restarts too, until all logs were checked.
        self.manifest.commit(
            rows, totals, self.manifest.stamps if self._is_index_suspect else stamps
        )
        self._batch = IndexBatch()
        return IndexView.from_searchers(searchers, totals), rows

    @property
    def is_suspect(self) -> bool:
        """Whether the indexes may hold something that the manifest does not know."""
        return self._is_index_suspect

    def mark_consistent(self) -> None:
        """Call it when every outdated log was read to its end: no surplus documents are left."""
        self._is_index_suspect = False
        self._checked_numbers.clear()
        stamps = [index.stamp for index in self._indexes]
        self.manifest.commit([], self.manifest.totals, stamps)

    def release_old_files(self) -> None:
        """Release files that only older views needed. Call it when there are no such views."""
        for index in self._indexes:
            index.release_old_files()

    def _check_stamps(self) -> None:
        stamps = [index.stamp for index in self._indexes]
        known = self.manifest.stamps or [0] * len(stamps)
        if self._directory is None or stamps == known:
            self._finish_removals()
            return
        behind = any(stamp < seen for stamp, seen in zip(stamps, known, strict=True))
        if behind or not self.manifest.stamps:
            raise DamagedIndexError("the manifest is not of this index")
        self._is_index_suspect = self._batch.is_repair = True
        unknown = make_uid(self.manifest.next_number, 0)
        for index in self._indexes:
            index.remove_range(unknown, MAX_UID)
        self._finish_removals()

    def _finish_removals(self) -> None:
        for number in self.manifest.list_removals():
            self._batch.is_repair = True
            for index in self._indexes:
                index.remove(number)

    def verify(self) -> None:
        """Read all files, which takes a while. Raises DamagedIndexError."""
        self.manifest.verify()
        for index in self._indexes:
            index.verify()

    def close(self) -> None:
        """Close. Uncommitted changes are lost."""
        for index in self._indexes:
            index.close()
        self.manifest.close()
