"""CompiledQuery: a query prepared for one tantivy index, to be run with several filters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .terms import Phrase, SearchQuery

if TYPE_CHECKING:  # imported late: most of the daemon's work needs no index
    import tantivy

    Clauses = list[tuple[tantivy.Occur, tantivy.Query]]

# Up to this many conversations, single clauses are cheaper than a set.
MAX_BOOLEAN_CLAUSES = 100


class QueryFilters(NamedTuple):
    """Values a document must have, or must not have."""

    agent: int | None = None
    sender: int | None = None
    since: int | None = None
    until: int | None = None
    among: Sequence[int] | None = None  # conversations
    without: Sequence[int] = ()


class CompiledQuery:
    """Each document has one of the weights, so there is one query for each weight."""

    def __init__(
        self,
        schema: "tantivy.Schema",
        marks: dict[float, str],
        query: SearchQuery,
        factors: dict[Phrase, list[float]],
    ) -> None:
        """Each part of the query is boosted by its weight and its factor for that weight."""
        from tantivy import Occur

        self._schema = schema
        self._clauses_by_weight: list[Clauses] = []
        self._has_phrases = bool(query.phrases)
        for number, (weight, mark) in enumerate(marks.items()):
            phrases = {phrase: weight * factors[phrase][number] for phrase in query.phrases}
            words = {(word,): weight * factors[word,][number] for word in query.words}
            if all(phrases.values()):
                clauses = [
                    (Occur.Must, self._boosted_phrase(phrase, factor, mark))
                    for phrase, factor in phrases.items()
                ]
                clauses += [
                    (Occur.Should, self._boosted_phrase(word, factor, mark))
                    for word, factor in words.items()
                    if factor
                ]
                self._clauses_by_weight.append(clauses)

    def __bool__(self) -> bool:
        """Whether any document can match."""
        return any(self._clauses_by_weight)

    def build(self, filters: QueryFilters) -> "tantivy.Query":
        import tantivy
        from tantivy import Occur

        make = tantivy.Query
        limits = self._filter_clauses(filters)
        if self._has_phrases:
            kinds = [make.boolean_query([*clauses, *limits]) for clauses in self._clauses_by_weight]
            return make.boolean_query([(Occur.Should, kind) for kind in kinds])
        words = make.boolean_query(
            [clause for clauses in self._clauses_by_weight for clause in clauses]
        )
        # Clauses that should match are optional beside those that must, so the words get a query of
        # their own: one of them must match.
        return make.boolean_query([(Occur.Must, words), *limits]) if limits else words

    def _boosted_phrase(self, phrase: Phrase, factor: float, mark: str) -> "tantivy.Query":
        import tantivy

        make = tantivy.Query
        terms: list[str | tuple[int, str]] = [term + mark for term in phrase]
        query = (
            make.phrase_query(self._schema, "body", terms)
            if len(terms) > 1
            else make.term_query(self._schema, "body", terms[0], "freq")
        )
        return make.boost_query(query, factor)

    def _filter_clauses(self, filters: QueryFilters) -> "Clauses":
        import tantivy
        from tantivy import FieldType, Occur

        make = tantivy.Query
        schema = self._schema
        must: list[tantivy.Query] = []
        if filters.agent is not None:
            must.append(make.term_query(schema, "agent", filters.agent))
        if filters.sender is not None:
            must.append(make.term_query(schema, "sender", filters.sender))
        if filters.among is not None:
            must.append(self._any_conversation(filters.among))
        if filters.since is not None or filters.until is not None:
            times = filters.since, filters.until
            must.append(make.range_query(schema, "at", FieldType.Unsigned, *times))
        limits = [(Occur.Must, make.const_score_query(query, 0.0)) for query in must]
        if filters.without:
            limits.append((Occur.MustNot, self._any_conversation(filters.without)))
        return limits

    def _any_conversation(self, conversations: Sequence[int]) -> "tantivy.Query":
        """A set has the same cost at any size; a few are cheaper as single clauses."""
        import tantivy
        from tantivy import Occur

        make = tantivy.Query
        if len(conversations) > MAX_BOOLEAN_CLAUSES:
            return make.term_set_query(self._schema, "conversation", conversations)
        queries = (
            make.term_query(self._schema, "conversation", number) for number in conversations
        )
        return make.boolean_query([(Occur.Should, query) for query in queries])
