"""Question: a query as one shelf is asked it, as often as it takes, with other limits each time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .terms import Phrase, SearchQuery

if TYPE_CHECKING:  # imported late: most of what a daemon does needs no index
    import tantivy

    Clauses = list[tuple[tantivy.Occur, tantivy.Query]]

# Conversations to look among, below which a set of them is not worth its price.
MAX_BOOLEAN_CLAUSES = 100


class QueryFilters(NamedTuple):
    """Numbers that documents must bear, or may not."""

    agent: int | None = None
    sender: int | None = None
    since: int | None = None
    until: int | None = None
    among: Sequence[int] | None = None  # conversations
    without: Sequence[int] = ()


class CompiledQuery:
    """A document has one of the weights: so it is a question of its own for each."""

    def __init__(
        self,
        schema: "tantivy.Schema",
        marks: dict[float, str],
        query: SearchQuery,
        factors: dict[Phrase, list[float]],
    ) -> None:
        """Each part counts as many times as its factor says, for each of the weights."""
        from tantivy import Occur

        self._schema = schema
        self._clauses_by_weight: list[Clauses] = []
        self._has_phrases = bool(query.phrases)
        for number, (weight, mark) in enumerate(marks.items()):
            phrases = {phrase: weight * factors[phrase][number] for phrase in query.phrases}
            words = {(word,): weight * factors[word,][number] for word in query.words}
            if all(phrases.values()):
                clauses = [
                    (Occur.Must, self._boosted_phrase(*each, mark)) for each in phrases.items()
                ]
                found = ((word, factor) for word, factor in words.items() if factor)
                clauses += [(Occur.Should, self._boosted_phrase(*each, mark)) for each in found]
                self._clauses_by_weight.append(clauses)

    def __bool__(self) -> bool:
        """Whether anything can be found."""
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
        # Beside what must be, what may be is left out: so that one of the words must be.
        return make.boolean_query([(Occur.Must, words), *limits]) if limits else words

    def _boosted_phrase(self, phrase: Phrase, factor: float, mark: str) -> "tantivy.Query":
        import tantivy

        make = tantivy.Query
        terms: list[str | tuple[int, str]] = [term + mark for term in phrase]
        made = (
            make.phrase_query(self._schema, "body", terms)
            if len(terms) > 1
            else make.term_query(self._schema, "body", terms[0], "freq")
        )
        return make.boost_query(made, factor)

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
        """A set costs the same however small it is; a few are cheaper one by one."""
        import tantivy
        from tantivy import Occur

        make = tantivy.Query
        if len(conversations) > MAX_BOOLEAN_CLAUSES:
            return make.term_set_query(self._schema, "conversation", conversations)
        each = (make.term_query(self._schema, "conversation", number) for number in conversations)
        return make.boolean_query([(Occur.Should, query) for query in each])
