"""TantivyIndex: one tantivy index, of messages, of titles or of summaries.

It knows documents, not conversations; the manifest records what is in it. Only one thread may
write; any thread may use a TantivySearcher, whose content never changes.
"""

import json
import struct
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import msgspec

from .compiled_query import CompiledQuery, QueryFilters
from .terms import Phrase, SearchQuery, TextTerms

if TYPE_CHECKING:  # imported late: most of the daemon's work needs no index
    import tantivy

# Memory for documents before they become a segment: enough for one commit of a rebuild, because
# each further segment makes every query slower.
WRITER_HEAP_BYTES = 40_000_000
MERGE_WAIT_SECONDS = 2.0
# Documents passed to tantivy at once.
DOCUMENTS_PER_BATCH = 256
MAX_MESSAGE_ID = 0xFFFF_FFFF
# Each file of a segment ends with a JSON object that has its checksum, the length of that object,
# and this number.
FOOTER = struct.Struct("<II")
FOOTER_MAGIC = 1337
READ_BYTES = 1024 * 1024
SEGMENT_SUFFIXES = ("fast", "fieldnorm", "idx", "pos", "store", "term")


class IndexHit(msgspec.Struct, frozen=True, gc=False):
    score: float
    conversation: int
    id: int
    address: "tantivy.DocAddress"


class DamagedIndexError(Exception):
    """The index cannot be read and must be rebuilt."""


def make_uid(conversation: int, number: int) -> int:
    return conversation << 32 | min(number, MAX_MESSAGE_ID)


class TantivyErrorConverter:
    """Converts tantivy's errors about unreadable files to DamagedIndexError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | OSError):
            raise DamagedIndexError(str(error)) from None
        # A panic arrives as this class, which cannot be imported.
        if error is not None and type(error).__name__ == "PanicException":
            raise DamagedIndexError(f"tantivy panicked: {error}") from None


converting_tantivy_errors = TantivyErrorConverter()


class TantivyIndex:
    def __init__(self, directory: Path | None, weights: Sequence[float]) -> None:
        """Open or create an index. Raises DamagedIndexError, but never without a directory.

        Each document has one of the weights, and all of its terms end in a mark for that weight. So
        a weight belongs to a term, and tantivy can skip documents that cannot be among the best.
        """
        import tantivy

        self._directory = directory
        self._weight_marks = dict(zip(weights, ascii_lowercase, strict=False))
        self._schema = build_schema(tantivy.SchemaBuilder())
        self._writer: tantivy.IndexWriter | None = None
        self._pending_documents: list[str] = []
        self._is_closed = False
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_files(directory)
        self._index = self._reader_index = self._open()
        self._idle_reader_index: tantivy.Index | None = None
        self._searcher = self._reader_index.searcher()

    def _open(self) -> "tantivy.Index":
        import tantivy

        with converting_tantivy_errors:
            path = str(self._directory) if self._directory is not None else None
            index = tantivy.Index(self._schema, path=path)
            splitting = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
            index.register_tokenizer("spaces", splitting)
            index.config_reader("manual")
            index.reload()
            return index

    @property
    def stamp(self) -> int:
        """The number of the last commit; it grows with each."""
        if self._directory is None:
            return 0
        return int(json.loads((self._directory / "meta.json").read_bytes())["opstamp"])

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    @property
    def writer(self) -> "tantivy.IndexWriter":
        if self._writer is None:
            self._writer = self._index.writer(WRITER_HEAP_BYTES, 1)
            # Remove what a crash left unfinished.
            self._writer.garbage_collect_files()
        return self._writer

    def add(
        self,
        uid: int,
        terms: TextTerms,
        weight: float,
        at: int,
        position: int,
        agent: int,
        sender: int,
    ) -> None:
        # JSON is passed in one step; letters and digits need no escaping.
        self._pending_documents.append(
            f'{{"body":"{terms.body(self._weight_marks[weight])}","every":0,"uid":{uid},'
            f'"conversation":{uid >> 32},"agent":{agent},"sender":{sender},"at":{at},'
            f'"position":{position}}}'
        )
        if len(self._pending_documents) >= DOCUMENTS_PER_BATCH:
            self._flush_documents()

    def _flush_documents(self) -> None:
        """Pass the documents to tantivy's own thread, which then wakes once for many."""
        add = self.writer.add_json
        for document in self._pending_documents:
            add(document)
        self._pending_documents.clear()

    def remove(self, conversation: int) -> None:
        import tantivy

        self._flush_documents()  # documents added after a removal stay
        # Not by term: there the number is taken for a signed one, which matches nothing.
        query = tantivy.Query.term_query(self._schema, "conversation", conversation)
        self.writer.delete_documents_by_query(query)

    def remove_range(self, uid: int, last: int) -> None:
        """Remove the documents from `uid` to `last`, both included."""
        import tantivy

        self._flush_documents()
        kind = tantivy.FieldType.Unsigned
        query = tantivy.Query.range_query(self._schema, "uid", kind, uid, last)
        self.writer.delete_documents_by_query(query)

    def commit(self) -> "TantivySearcher":
        """Commit what was written; the returned searcher can find it."""
        if self._pending_documents:
            self._flush_documents()
        if self._writer is not None:
            self._writer.commit()
            if self._directory is not None:
                # The two take turns, so that the previous one keeps its files: see
                # `release_old_files`.
                idle = self._idle_reader_index or self._open()
                self._reader_index, self._idle_reader_index = idle, self._reader_index
            self._reader_index.reload()
            self._searcher = self._reader_index.searcher()
        return self.searcher()

    def release_old_files(self) -> None:
        """Release merged-away files. Call it when no searcher from before the last commit is used.

        This takes long. Dropping the searcher alone would block every other thread meanwhile;
        tantivy's reload does not.
        """
        if self._idle_reader_index is not None:
            self._idle_reader_index.reload()

    def close(self) -> None:
        """Close; uncommitted documents are lost.

        Waits a limited time for a running merge: without it the segments stay as they were.
        """
        self._is_closed = True
        self._pending_documents.clear()
        writer, self._writer = self._writer, None
        if writer is not None:
            merging = threading.Thread(target=writer.wait_merging_threads, daemon=True)
            merging.start()
            merging.join(MERGE_WAIT_SECONDS)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def searcher(self) -> "TantivySearcher":
        return TantivySearcher(self._schema, self._searcher, self._weight_marks)

    def verify(self) -> None:
        """Read every file of every segment, which takes a while. Raises DamagedIndexError."""
        if self._directory is None:
            return
        segments = read_segments(self._directory)
        for path in sorted(self._directory.iterdir()):
            if self._is_closed:
                return  # the result is not needed any more
            if path.name.partition(".")[0] in segments:
                try:
                    intact = is_intact(path)
                except FileNotFoundError:
                    continue  # merged into another meanwhile
                if not intact:
                    raise DamagedIndexError(f"{path.name} is not what was written")


class TantivySearcher:
    """An index as it was at one commit."""

    def __init__(
        self, schema: "tantivy.Schema", searcher: "tantivy.Searcher", marks: dict[float, str]
    ) -> None:
        self._schema = schema
        self._searcher = searcher
        self._weight_marks = marks
        self.documents = searcher.num_docs
        with converting_tantivy_errors:
            # Tantivy's scores count removed documents too, until they are merged away.
            self.counted_documents = searcher.doc_freq("every", 0)

    def document_frequency(self, term: str) -> int:
        """The number of documents with the term; removed ones may be included."""
        return sum(self.document_frequencies(term))

    def document_frequencies(self, term: str) -> list[int]:
        """`document_frequency` for each weight."""
        with converting_tantivy_errors:
            return [
                self._searcher.doc_freq("body", term + mark) for mark in self._weight_marks.values()
            ]

    def compile_query(
        self, query: SearchQuery, factors: dict[Phrase, list[float]]
    ) -> CompiledQuery:
        return CompiledQuery(self._schema, self._weight_marks, query, factors)

    def search(self, query: CompiledQuery, filters: QueryFilters, limit: int) -> list[IndexHit]:
        """Return the documents that score best."""
        if not query:
            return []
        searcher = self._searcher
        with converting_tantivy_errors:
            hits = searcher.search(query.build(filters), limit, count=False).hits
            uids: list[Any] = searcher.fast_field_values("uid", [address for _, address in hits])
        return [
            IndexHit(score, uid >> 32, uid & MAX_MESSAGE_ID, address)
            for (score, address), uid in zip(hits, uids, strict=True)
            if uid is not None
        ]

    def load_positions(self, hits: Sequence[IndexHit]) -> list[int]:
        """The positions of the messages in their logs."""
        return self._load_numbers("position", hits)

    def load_times(self, hits: Sequence[IndexHit]) -> list[int]:
        """In milliseconds since 1970."""
        return self._load_numbers("at", hits)

    def _load_numbers(self, field: str, hits: Sequence[IndexHit]) -> list[int]:
        with converting_tantivy_errors:
            values = self._searcher.fast_field_values(field, [hit.address for hit in hits])
            return [int(value or 0) for value in values]


def build_schema(builder: "tantivy.SchemaBuilder") -> "tantivy.Schema":
    """The fields that documents are found, filtered and located by. No text is stored."""
    builder.add_text_field("body", tokenizer_name="spaces", index_option="position")
    builder.add_unsigned_field("every", indexed=True)
    builder.add_unsigned_field("uid", fast=True)
    builder.add_unsigned_field("conversation", indexed=True)
    builder.add_unsigned_field("agent", indexed=True)
    builder.add_unsigned_field("sender", indexed=True)
    builder.add_unsigned_field("at", fast=True)
    builder.add_unsigned_field("position", fast=True)
    return builder.build()


def check_files(directory: Path) -> None:
    """Check that all files exist. Tantivy itself checks their structure when it opens them."""
    names = {path.name for path in directory.iterdir()}
    if "meta.json" not in names:
        return
    needed = {f"{name}.{part}" for name in read_segments(directory) for part in SEGMENT_SUFFIXES}
    if missing := (needed | {".managed.json"}) - names:
        raise DamagedIndexError(f"{min(missing)} is missing")
    for name in names:
        if name.startswith(".tmp"):  # a crash came before it was renamed
            (directory / name).unlink(missing_ok=True)


def read_segments(directory: Path) -> set[str]:
    """The names of the committed segments."""
    try:
        segments = json.loads((directory / "meta.json").read_bytes())["segments"]
        return {segment["segment_id"].replace("-", "") for segment in segments}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedIndexError(f"meta.json cannot be read: {error}") from None


def is_intact(path: Path) -> bool:
    """Whether the content of a segment's file matches the checksum at its end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - FOOTER.size))
        try:
            length, magic = FOOTER.unpack(file.read(FOOTER.size))
            file.seek(size - FOOTER.size - length)
            expected = json.loads(file.read(length))["crc"]
        except (struct.error, OSError, ValueError, KeyError):
            return False
        file.seek(0)
        remaining, checksum = size - FOOTER.size - length, 0
        while remaining > 0 and (piece := file.read(min(READ_BYTES, remaining))):
            checksum = zlib.crc32(piece, checksum)
            remaining -= len(piece)
    return bool(magic == FOOTER_MAGIC and checksum == expected)
