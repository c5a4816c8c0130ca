"""Library: three shelves and their manifest, fed from the logs. Blocks; one thread writes.

What is taken in can be found after `commit`. A crash at any moment leaves what the last commit
left, or some of what the next one was to bring; the manifest tells which, and the logs have the
rest: nothing is missing and nothing is there twice.
"""

import time
from pathlib import Path

import msgspec

from crabtalk.storage import (
    Followed,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Pair,
    log_name,
)

from .document import MESSAGES, SUMMARY, TITLE, key_of, milliseconds, searchable
from .manifest import Manifest, Row, Totals
from .shelf import LARGEST_ID, DamagedError, Searcher, Shelf, uid_of
from .terms import terms_of

# What each has, and how much that may count.
SHELVES = {"messages": MESSAGES, "titles": (TITLE,), "summaries": (SUMMARY,)}
LARGEST_UID = 2**64 - 1
# Records after which other threads get their turn, rather than when the interpreter comes to it:
# the event loop should not notice that logs are being read.
YIELD_EVERY = 64


class View(msgspec.Struct, frozen=True):
    """What could be found at one commit."""

    messages: Searcher
    titles: Searcher
    summaries: Searcher
    totals: Totals

    @classmethod
    def of(cls, searchers: list[Searcher], totals: Totals) -> "View":
        messages, titles, summaries = searchers
        return cls(messages, titles, summaries, totals)


class Batch(msgspec.Struct):
    """What the next commit brings."""

    rows: dict[str, Row] = msgspec.field(default_factory=dict)  # by handle
    handles: dict[Pair, str] = msgspec.field(default_factory=dict)
    removed: set[int] = msgspec.field(default_factory=set)
    added: int = 0
    mends: bool = False  # what a crash left half done

    def __bool__(self) -> bool:
        return bool(self.rows or self.removed or self.mends)


class Library:
    def __init__(self, directory: Path | None) -> None:
        """Raises DamagedError when it has to be made anew, and OSError."""
        self._directory = directory
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.messages, self.titles, self.summaries = self._shelves = [
            Shelf(directory / name if directory is not None else None, weights)
            for name, weights in SHELVES.items()
        ]
        self.manifest = Manifest(directory / "manifest" if directory is not None else None)
        self._totals = msgspec.structs.replace(self.manifest.totals)
        self._batch = Batch()
        self._taken = 0
        self._suspect = False
        self._checked: set[int] = set()
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

    def view(self) -> View:
        searchers = [shelf.searcher() for shelf in self._shelves]
        return View.of(searchers, self.manifest.totals)

    # ── Taking in ───────────────────────────────────────────────────────────────────────────

    def row(self, handle: str) -> Row | None:
        return self._batch.rows.get(handle) or self._unless_removed(self.manifest.of_handle(handle))

    def row_of(self, pair: Pair) -> Row | None:
        handle = self._batch.handles.get(pair)
        if handle is not None and (row := self._batch.rows.get(handle)) is not None:
            return row
        return self._unless_removed(self.manifest.of_pair(pair))

    def _unless_removed(self, row: Row | None) -> Row | None:
        return row if row is not None and row.number not in self._batch.removed else None

    def places(self, deleted: list[Pair], stale: list[str], said: list[Pair]) -> dict[str, int]:
        """Removes some, and says of others which log to read from where."""
        for pair in deleted:
            if (row := self.row_of(pair)) is not None:
                self.remove(row)
        self.remove_all(stale)
        rows = [(pair, self.row_of(pair)) for pair in said]
        return dict(
            (row.handle, row.position) if row is not None else (log_name(pair), 0)
            for pair, row in rows
        )

    def positions(self, handles: list[str]) -> dict[str, int]:
        rows = [(handle, self.row(handle)) for handle in handles]
        return {handle: row.position if row is not None else 0 for handle, row in rows}

    def unread(self, versions: dict[str, int]) -> list[str]:
        """Of logs by handle, those that have another version than the one that was read."""
        rows = [(handle, self.row(handle)) for handle in versions]
        return [h for h, row in rows if row is None or row.version != versions[h]]

    def unknown(self, pairs: list[Pair]) -> list[Pair]:
        return [pair for pair in pairs if self.row_of(pair) is None]

    def take_all(self, read: list[tuple[str, Followed | None, bool]]) -> dict[str, int]:
        """What was read of several logs. Returns those to go on with, and from where."""
        again: dict[str, int] = {}
        for handle, followed, tool_results in read:
            if followed is None:
                self.remove_all([handle])
            elif not self.take(handle, followed, tool_results=tool_results):
                again[handle] = 0
            elif followed.more:
                again[handle] = followed.position
        return again

    def take(self, handle: str, followed: Followed, *, tool_results: bool) -> bool:
        """What was read of a log. False when it has to be read from the beginning."""
        row = self._continued(handle, followed, tool_results)
        if row is None:
            if followed.start:
                return False
            row = self._begun(handle, followed, tool_results)
            if row is None:
                return True
        self._totals.count(row, -1)
        keys = key_of(row.agent), key_of(row.sender)
        title, marker = row.title, None
        for position, record in followed.records:
            self._taken += 1
            if self._taken % YIELD_EVERY == 0:
                time.sleep(0)
            if isinstance(record, MessageRecord):
                self._add(row, position, record, keys)
                row.message_count, row.updated_at = record.id + 1, record.at
            elif isinstance(record, MetaRecord):
                self._note(row, record)
                title = title if record.title is None else record.title
            elif isinstance(record, MarkerRecord):
                marker = record
                row.updated_at = record.archived_at
        if title != row.title or self._is_suspect(row):
            self._retitle(row, title, keys)
        if marker is not None:
            self._summarise(row, marker, keys)
        self._check(row.number)
        row.position = followed.position
        row.version = 0 if followed.more else followed.version
        self._totals.count(row, 1)
        self._batch.rows[handle] = row
        self._batch.handles[row.pair] = handle
        return True

    def _continued(self, handle: str, followed: Followed, tool_results: bool) -> Row | None:
        """The row these records continue; one they do not is removed."""
        row = self.row(handle)
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
        if self._is_suspect(row):
            # What a commit brought that the manifest never heard of comes again now.
            first_uid = uid_of(row.number, row.next_id)
            self.messages.remove_from(first_uid, uid_of(row.number, LARGEST_ID))
        return row

    def _begun(self, handle: str, followed: Followed, tool_results: bool) -> Row | None:
        """A row for a log not read before; None where another log is this pair's."""
        other = self.row_of(followed.pair)
        if other is not None:
            if handle != log_name(followed.pair):
                return None
            self.remove(other)
        number = self.manifest.next_number
        self.manifest.next_number += 1
        self._check(number)
        return Row(number, handle, *followed.pair, followed.origin, tool_results=tool_results)

    def _is_suspect(self, row: Row) -> bool:
        """Whether shelves may have more of it than the manifest knows."""
        return self._suspect and row.number not in self._checked

    def _check(self, number: int) -> None:
        if self._suspect:
            self._checked.add(number)

    def _note(self, row: Row, record: MetaRecord) -> None:
        meta = row.meta.patched(record)
        row.created_at = meta.created_at
        row.updated_at = meta.updated_at
        row.message_count = meta.message_count

    def _add(self, row: Row, position: int, record: MessageRecord, keys: tuple[int, int]) -> None:
        if record.id < row.next_id or record.id >= LARGEST_ID:
            return
        row.next_id = record.id + 1
        text, weight = searchable(record.message, tool_results=row.tool_results)
        terms = terms_of(text)
        if not terms:
            return
        at = milliseconds(record.at)
        self.messages.add(uid_of(row.number, record.id), terms, weight, at, position, *keys)
        row.documents += 1
        row.length += len(terms)
        self._batch.added += 1

    def _retitle(self, row: Row, title: str, keys: tuple[int, int]) -> None:
        if row.title_length or self._suspect:
            self.titles.remove(row.number)
        terms = terms_of(title)
        row.title, row.title_length = title, len(terms)
        if terms:
            at = milliseconds(row.created_at)
            self.titles.add(uid_of(row.number, 0), terms, TITLE, at, 0, *keys)

    def _summarise(self, row: Row, marker: MarkerRecord, keys: tuple[int, int]) -> None:
        """Found, it leads to the last message it stands for."""
        if row.summary_length or self._suspect:
            self.summaries.remove(row.number)
        terms = terms_of(marker.summary)
        row.folded, row.archived_at = marker.end_id, marker.archived_at
        row.summary_length = len(terms)
        if terms:
            uid = uid_of(row.number, max(0, marker.end_id - 1))
            at = milliseconds(marker.archived_at)
            self.summaries.add(uid, terms, SUMMARY, at, 0, *keys)

    def remove_all(self, handles: list[str]) -> None:
        for handle in handles:
            if (row := self.row(handle)) is not None:
                self.remove(row)

    def remove(self, row: Row) -> None:
        # Only where there is something of it: the engine keeps each removal until a document comes
        # after it, and where there are no titles none would.
        held = (row.documents, row.title_length, row.summary_length)
        for shelf, count in zip(self._shelves, held, strict=True):
            if count or self._suspect:
                shelf.remove(row.number)
        self._totals.count(row, -1)
        self._batch.rows.pop(row.handle, None)
        self._batch.removed.add(row.number)

    # ── Keeping ─────────────────────────────────────────────────────────────────────────────

    def commit(self) -> tuple[View, list[Row]]:
        """What was taken in can be found, in the view returned. Raises DamagedError, OSError."""
        batch = self._batch
        if batch.removed:
            # Before the shelves: what is gone from them must not be taken for read.
            self.manifest.remove(sorted(batch.removed))
        try:
            searchers = [shelf.commit() for shelf in self._shelves]
            stamps = [shelf.stamp for shelf in self._shelves]
        except ValueError as error:  # what tantivy says of a full disk, too
            raise OSError(f"the index cannot be written: {error}") from None
        totals = msgspec.structs.replace(self._totals)
        rows = list(batch.rows.values())
        # In doubt it stays, in its next life too, until all was looked at.
        self.manifest.commit(rows, totals, self.manifest.stamps if self._suspect else stamps)
        self._batch = Batch()
        return View.of(searchers, totals), rows

    @property
    def is_suspect(self) -> bool:
        """Whether shelves may have something that the manifest knows nothing of."""
        return self._suspect

    def trust(self) -> None:
        """Every log that is not as the manifest has it was read to its end: what was too much is
        gone."""
        self._suspect = False
        self._checked.clear()
        stamps = [shelf.stamp for shelf in self._shelves]
        self.manifest.commit([], self.manifest.totals, stamps)

    def let_go(self) -> None:
        """Of what only older views needed, when there are none."""
        for shelf in self._shelves:
            shelf.let_go()

    def _check_stamps(self) -> None:
        stamps = [shelf.stamp for shelf in self._shelves]
        known = self.manifest.stamps or [0] * len(stamps)
        if self._directory is None or stamps == known:
            self._finish_removals()
            return
        behind = any(stamp < seen for stamp, seen in zip(stamps, known, strict=True))
        if behind or not self.manifest.stamps:
            raise DamagedError("the manifest is not of this index")
        self._suspect = self._batch.mends = True
        unknown = uid_of(self.manifest.next_number, 0)
        for shelf in self._shelves:
            shelf.remove_from(unknown, LARGEST_UID)
        self._finish_removals()

    def _finish_removals(self) -> None:
        for number in self.manifest.removals():
            self._batch.mends = True
            for shelf in self._shelves:
                shelf.remove(number)

    def verify(self) -> None:
        """Reads all of it, which takes a while. Raises DamagedError."""
        self.manifest.verify()
        for shelf in self._shelves:
            shelf.verify()

    def close(self) -> None:
        """What was not committed is forgotten."""
        for shelf in self._shelves:
            shelf.close()
        self.manifest.close()
