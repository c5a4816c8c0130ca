"""What can be found, by whom, and in which order; the same in the tail as in the shelves."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from crabtalk.model.messages import Image, Message
from crabtalk.search import MAX_HITS, SearchScope
from crabtalk.storage import Pair, make_log_name
from tests.search.search_harness import (
    CRAB,
    OWL,
    SearchHarness,
    format_minute,
    make_tool_call,
    make_tool_result,
    open_harness,
)

# Threads do the work; whose loop waits for them makes no difference.
pytestmark = pytest.mark.one_loop


def make_pairs(count: int, agent: str = "crab") -> list[Pair]:
    return [Pair(agent, f"user{number}") for number in range(count)]


# ── What is found ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.append.at_once")
async def test_a_message_is_found_as_soon_as_it_was_appended(talk: SearchHarness) -> None:
    for number in range(20):
        await talk.append_messages(CRAB, f"this is about topic{number}")
        hit = await talk.search_one(f"topic{number}")
        assert hit.message_id == number
        assert hit.window[-1].snippet == f"this is about topic{number}"


@pytest.mark.req("search.hit.shape")
async def test_a_hit_says_whose_conversation_it_is_and_where_it_matched(
    talk: SearchHarness,
) -> None:
    await talk.append_messages(CRAB, "hello", Message("assistant", "the tide is high"))
    await talk.set_title(CRAB, "Tides")
    hit = await talk.search_one("tide")
    assert (hit.agent, hit.sender, hit.title) == ("crab", "user", "Tides")
    assert hit.handle == make_log_name(CRAB)
    assert (hit.created_at, hit.updated_at) == (format_minute(1), format_minute(1))
    assert hit.message_count == 2
    assert hit.message_id == 1
    assert hit.score > 0
    assert [(item.id, item.role, item.snippet) for item in hit.window] == [
        (0, "user", "hello"),
        (1, "assistant", "the tide is high"),
    ]


async def test_what_was_never_said_is_not_found(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "hello")
    assert await talk.search("goodbye") == []


async def test_a_query_without_words_finds_nothing(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "the x of and ?!")
    for query in ("", " ", "?!", '""', '"', "the of and", "x"):
        assert await talk.search(query) == [], query


@pytest.mark.req("search.one_hit_a_conversation")
async def test_a_conversation_is_found_once_however_often_it_matches(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, *["tide"] * 10)
    await talk.append_messages(OWL, "tide and ebb")
    assert sorted(await talk.find_senders("tide")) == ["crab/user", "owl/user"]


@pytest.mark.req("search.compacted")
async def test_what_was_compacted_is_found_as_before(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "the anchor is rusty", "what now")
    await talk.append_summary(CRAB, "They spoke of boats.")
    await talk.append_messages(CRAB, "go on")
    hit = await talk.search_one("anchor")
    assert hit.message_id == 0
    assert [item.id for item in hit.window] == [0, 1, 2]


@pytest.mark.req("search.words.any_script")
@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("数据库很快但是索引坏了", ["数据库", "索引", "很快", "坏", "数据库 索引"]),
        ("データベースが壊れた", ["データ", "ベース", "壊"]),
        ("Die Straße über den Fluß", ["strasse", "uber", "FLUSS", "über"]),
        ("naïve café in Ærø", ["naive", "CAFÉ", "café"]),
        ("Привет, мир", ["привет", "МИР"]),
        ("call parse_query_lenient() in src/query-parser.rs:42", ["lenient", "query", "parser"]),
        ("see ToolDispatch and getHTTPResponse", ["tooldispatch", "GETHTTPRESPONSE"]),
        ("日本語とEnglishとcode_name", ["english", "日本", "code", "name"]),
        ("it’s “quoted” — really…", ["quoted", "really"]),
    ],
)
async def test_words_are_found_in_any_script_however_they_are_spelt(
    talk: SearchHarness, text: str, queries: list[str]
) -> None:
    await talk.append_messages(CRAB, "something else", text)
    for query in queries:
        assert (await talk.search_one(query)).message_id == 1, query


async def test_half_a_surrogate_pair_can_be_said_and_asked(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "half \ud83e a crab")
    assert await talk.find_senders("crab \ud83e") == ["crab/user"]
    assert await talk.find_senders("\ud83e") in ([], ["crab/user"])


# ── What counts, and how much ───────────────────────────────────────────────────────────────────


@pytest.mark.req("search.weights.roles")
async def test_what_the_user_said_counts_more_than_a_call_and_that_more_than_an_answer(
    talk: SearchHarness,
) -> None:
    await talk.append_messages(Pair("crab", "c"), Message("assistant", "quartz vein found"))
    await talk.append_messages(Pair("crab", "b"), make_tool_call("quartz", '{"vein":"found"}'))
    await talk.append_messages(Pair("crab", "a"), "quartz vein found")
    for query in ("quartz", "quartz vein", '"quartz vein"', '"quartz vein" found'):
        hits = await talk.search(query)
        assert [hit.sender for hit in hits] == ["a", "b", "c"]
        best = hits[0].score
        assert [round(hit.score / best * 1.5, 3) for hit in hits] == [1.5, 1.3, 1.0]


async def test_weights_are_the_same_when_most_that_had_the_word_is_deleted(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(Pair("crab", "c"), Message("assistant", "quartz vein found"))
        await talk.append_messages(Pair("crab", "b"), make_tool_call("quartz", '{"vein":"found"}'))
        await talk.append_messages(Pair("crab", "a"), "quartz vein found")
        for number in range(20):
            await talk.append_messages(Pair("owl", f"user{number}"), "quartz vein found", "granite")
        await talk.wait_until_committed()
        for number in range(20):
            await talk.delete(Pair("owl", f"user{number}"))
        for _ in range(2):
            hits = await talk.search("quartz")
            assert [hit.sender for hit in hits] == ["a", "b", "c"]
            best = hits[0].score
            assert [round(hit.score / best * 1.5, 3) for hit in hits] == [1.5, 1.3, 1.0]
            await talk.wait_until_committed()


@pytest.mark.req("search.weights.title")
async def test_a_title_counts_twice_and_is_enough_by_itself(talk: SearchHarness) -> None:
    await talk.append_messages(Pair("crab", "a"), "quartz vein found")
    await talk.append_messages(Pair("crab", "b"), "quartz vein found")
    await talk.append_messages(Pair("crab", "c"), "hello there", "something")
    await talk.set_title(Pair("crab", "b"), "quartz")
    await talk.set_title(Pair("crab", "c"), "quartz")
    hits = await talk.search("quartz")
    assert hits[0].sender == "b"
    assert {hit.sender for hit in hits} == {"a", "b", "c"}
    by_title = next(hit for hit in hits if hit.sender == "c")
    assert by_title.message_id == 0
    assert by_title.window[0].snippet == "hello there"


@pytest.mark.req("search.weights.summary")
async def test_a_summary_counts_three_times_and_is_enough_by_itself(talk: SearchHarness) -> None:
    for sender in "abc":
        await talk.append_messages(Pair("crab", sender), "quartz vein found", "so it is")
    await talk.append_messages(Pair("crab", "d"), "hello", "there", "again")
    await talk.set_title(Pair("crab", "b"), "quartz")
    await talk.set_title(Pair("crab", "d"), "granite")
    await talk.append_summary(Pair("crab", "c"), "quartz")
    await talk.append_summary(Pair("crab", "d"), "basalt")
    assert [hit.sender for hit in await talk.search("quartz")] == ["c", "b", "a"]
    by_summary = await talk.search_one("basalt")
    assert by_summary.sender == "d"
    assert by_summary.message_id == 2  # the last one it stands for
    assert [item.id for item in by_summary.window] == [0, 1, 2]


async def test_a_later_title_takes_the_place_of_the_one_before(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "hello")
    await talk.set_title(CRAB, "quartz")
    assert await talk.find_senders("quartz") == ["crab/user"]
    await talk.set_title(CRAB, "granite")
    assert await talk.find_senders("quartz") == []
    assert (await talk.search_one("granite")).title == "granite"
    await talk.append_summary(CRAB, "basalt")
    assert await talk.find_senders("basalt") == ["crab/user"]
    await talk.append_messages(CRAB, "on we go")
    await talk.append_summary(CRAB, "marble")
    assert await talk.find_senders("basalt") == []
    assert (await talk.search_one("marble")).message_id == 1


@pytest.mark.req("search.system_never")
async def test_a_system_message_is_never_found(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, Message("system", "the password is swordfish"), "hello")
    assert await talk.search("swordfish") == []


@pytest.mark.req("search.tool_calls")
async def test_a_call_is_found_by_its_name_and_arguments(talk: SearchHarness) -> None:
    call = make_tool_call(
        "web_fetch", '{"url":"https://tides.example/today","note":"a\\nbuoy"}', "Let me"
    )
    await talk.append_messages(CRAB, "look it up", call)
    for query in ("fetch", "tides", "buoy", "url"):
        hit = await talk.search_one(query)
        assert hit.message_id == 1
        assert hit.window[1].tool_name == "web_fetch"
    assert (await talk.search_one("tides")).window[1].snippet.startswith("web_fetch(")
    assert (await talk.search_one("let")).window[1].snippet == "Let me"


@pytest.mark.req("search.tool_results.only_where_allowed")
async def test_what_a_tool_answered_is_neither_found_nor_shown_unless_allowed(home: Path) -> None:
    async with open_harness(home, index_tool_results=lambda agent: agent == "owl") as talk:
        for pair in (CRAB, OWL):
            await talk.append_messages(
                pair, "run it please", make_tool_call("bash", "{}"), make_tool_result("swordfish")
            )
        for _ in range(2):
            hit = await talk.search_one("swordfish")
            assert (hit.agent, hit.message_id) == ("owl", 2)
            assert hit.window[2].snippet == "swordfish"
            hits = await talk.search("run")
            shown = {hit.agent: hit.window[2] for hit in hits}
            assert shown["crab"].snippet == ""
            assert shown["crab"].truncated
            assert shown["crab"].tool_name == "bash"
            assert shown["owl"].snippet == "swordfish"
            await talk.wait_until_committed()


@pytest.mark.req("search.tool_results.only_where_allowed")
async def test_a_change_of_mind_about_tool_results_holds_for_what_was_said_before(
    home: Path,
) -> None:
    allowed: set[str] = set()
    async with open_harness(home, index_tool_results=lambda agent: agent in allowed) as talk:
        await talk.append_messages(
            CRAB, "run it", make_tool_call("bash", "{}"), make_tool_result("swordfish")
        )
        await talk.wait_until_committed()
        assert await talk.find_senders("swordfish") == []
        allowed.add("crab")
        await talk.wait_until_committed()
        assert await talk.find_senders("swordfish") == ["crab/user"]
        allowed.clear()
        assert await talk.find_senders("swordfish") == []
        await talk.restart()
        await talk.wait_until_committed()
        assert await talk.find_senders("swordfish") == []
        assert (await talk.search_one("run")).window[2].snippet == ""


async def test_a_guest_is_named_in_the_window(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "ask the owl", Message("assistant", "hoot", agent="owl"))
    hit = await talk.search_one("hoot")
    assert [item.agent for item in hit.window] == ["", "owl"]


async def test_images_neither_hinder_nor_help(talk: SearchHarness) -> None:
    image = Image(data=b"swordfish" * 10_000)
    await talk.append_messages(CRAB, Message("user", "a picture of a pier", images=(image,)))
    assert await talk.find_senders("pier") == ["crab/user"]
    assert await talk.find_senders("swordfish") == []


# ── Phrases ─────────────────────────────────────────────────────────────────────────────────────


PHRASES = [
    ('"low tide"', {"a"}),
    ('"tide low"', {"b"}),
    ("low tide", {"a", "b", "c"}),
    ('"low tide" harbour', {"a"}),
    ('"low tide" "old harbour"', set()),
    ('"the low, TIDE!"', {"a"}),
    ('"tide"', {"a", "b", "c"}),
    ('"low tide', {"a", "b", "c"}),
    ('"café noir"', {"d"}),
    ('"noir café"', set()),
    ('"数据库"', {"d"}),
    ('"noir 数据"', {"d"}),
    ('"库数"', set()),
]


@pytest.mark.req("search.phrases")
async def test_what_is_in_quotes_stands_in_a_row(talk: SearchHarness) -> None:
    await talk.append_messages(Pair("crab", "a"), "at low tide we walk to the harbour")
    await talk.append_messages(Pair("crab", "b"), "the tide: low and slow")
    await talk.append_messages(Pair("crab", "c"), "low water, then the tide, in the old harbour")
    await talk.append_messages(Pair("crab", "d"), "un café noir 数据库 s'il vous plaît")
    for query, expected in PHRASES:
        assert {hit.sender for hit in await talk.search(query)} == expected, query


# ── Who may find it ─────────────────────────────────────────────────────────────────────────────


SCOPES = [
    (SearchScope(), {"crab/ann", "crab/bob", "owl/ann", "owl/bob"}),
    (SearchScope(agent="crab"), {"crab/ann", "crab/bob"}),
    (SearchScope(sender="ann"), {"crab/ann", "owl/ann"}),
    (SearchScope("owl", "bob"), {"owl/bob"}),
    (SearchScope("owl", "eve"), set()),
    (SearchScope("", ""), set()),
]


@pytest.mark.req("search.scope")
async def test_nothing_is_found_outside_the_scope(talk: SearchHarness) -> None:
    for agent in ("crab", "owl"):
        for sender in ("ann", "bob"):
            await talk.append_messages(Pair(agent, sender), "the secret is swordfish", "and more")
            await talk.set_title(Pair(agent, sender), "granite")
            await talk.append_summary(Pair(agent, sender), "basalt")
    for query in ("swordfish", "granite", "basalt", "swordfish granite basalt", '"the secret"'):
        for scope, expected in SCOPES:
            assert set(await talk.find_senders(query, scope=scope)) == expected, (query, scope)


@pytest.mark.req("search.filters.time")
async def test_a_range_of_time_is_of_messages_not_of_conversations(talk: SearchHarness) -> None:
    def when(minute: int) -> datetime:
        return datetime(2026, 1, 1, 0, minute, tzinfo=UTC)

    texts = ["early tide", "late tide", "no match", "last tide"]
    await talk.append_timed(
        CRAB, [(Message("user", text), format_minute(10 + n)) for n, text in enumerate(texts)]
    )
    await talk.append_timed(OWL, [(Message("user", "tide"), format_minute(30))])
    assert set(await talk.find_senders("tide")) == {"crab/user", "owl/user"}
    assert await talk.find_senders("tide", since=when(20)) == ["owl/user"]
    assert await talk.find_senders("tide", until=when(20)) == ["crab/user"]
    assert (await talk.search_one("tide", since=when(11), until=when(12))).message_id == 1
    assert (await talk.search_one("tide", since=when(12), until=when(14))).message_id == 3
    assert await talk.find_senders("tide", since=when(14), until=when(29)) == []
    assert await talk.find_senders("tide", since=when(31)) == []
    naive = when(20).replace(tzinfo=None)
    assert await talk.find_senders("tide", since=naive) == ["owl/user"]


async def test_a_title_counts_in_a_range_of_time_that_has_only_the_message(
    talk: SearchHarness,
) -> None:
    for sender in "ab":
        pair = Pair("crab", sender)
        await talk.append_timed(pair, [(Message("user", "hello"), format_minute(1))])
        await talk.append_timed(pair, [(Message("user", "tide again"), format_minute(50))])
    await talk.set_title(Pair("crab", "b"), "tide")
    since = datetime(2026, 1, 1, 0, 40, tzinfo=UTC)
    first, second = await talk.search("tide", since=since)
    assert (first.sender, second.sender) == ("b", "a")
    assert first.score > second.score


async def test_a_title_that_was_replaced_does_not_count_in_a_range_of_time(home: Path) -> None:
    async with open_harness(home) as talk:
        for sender in "ab":
            await talk.append_timed(
                Pair("crab", sender), [(Message("user", "hello"), format_minute(1))]
            )
        await talk.set_title(Pair("crab", "b"), "tide")
        await talk.wait_until_committed()
        await talk.set_title(Pair("crab", "b"), "ebb")
        for sender in "ab":
            await talk.append_timed(
                Pair("crab", sender), [(Message("user", "tide again"), format_minute(50))]
            )
        since = datetime(2026, 1, 1, 0, 40, tzinfo=UTC)
        for _ in range(2):
            first, second = await talk.search("tide", since=since)
            assert first.score == pytest.approx(second.score)
            await talk.wait_until_committed()


async def test_a_title_is_found_in_a_range_of_time_below_a_hundred_others(home: Path) -> None:
    async with open_harness(home) as talk:
        for pair in make_pairs(100):
            await talk.append_messages(pair, "hello")
            await talk.set_title(pair, "tide")
        await talk.append_messages(OWL, "hello")
        await talk.set_title(OWL, "a rather long title with the tide in it somewhere, once")
        since = datetime.fromisoformat(format_minute(talk.minute))
        for _ in range(2):
            assert await talk.find_senders("tide", since=since) == ["owl/user"]
            await talk.wait_until_committed()


@pytest.mark.req("search.filters.before_ranking")
async def test_a_filter_finds_what_is_ranked_below_a_thousand_others(home: Path) -> None:
    async with open_harness(home) as talk:
        for pair in make_pairs(30):
            await talk.append_messages(pair, *["tide tide tide"] * 40)
        await talk.append_messages(
            OWL, "a rather long sentence that has the tide in it somewhere, once"
        )
        for _ in range(2):
            assert await talk.find_senders("tide", scope=SearchScope(agent="owl")) == ["owl/user"]
            await talk.wait_until_committed()


@pytest.mark.req("search.chatty")
async def test_a_chatty_conversation_does_not_hide_the_others(home: Path) -> None:
    async with open_harness(home) as talk:
        for _ in range(4):
            await talk.append_messages(CRAB, *["tide tide tide"] * 500)
        for pair in make_pairs(8, "owl"):
            await talk.append_messages(
                pair, "a rather long sentence that has the tide in it somewhere"
            )
        for _ in range(2):
            found = await talk.find_senders("tide", limit=20)
            assert found[0] == "crab/user"
            assert len(found) == 9
            await talk.wait_until_committed()


# ── Order and limits ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.ties")
async def test_equals_come_in_the_order_they_were_last_spoken_in(talk: SearchHarness) -> None:
    for pair in make_pairs(12):
        await talk.append_messages(pair, "the same words")
    await talk.append_timed(
        Pair("crab", "b"), [(Message("user", "the same words"), format_minute(5000))]
    )
    await talk.append_timed(
        Pair("crab", "a"), [(Message("user", "the same words"), format_minute(5000))]
    )
    expected = ["a", "b", *(f"user{number}" for number in reversed(range(12)))]
    handles = {pair.sender: make_log_name(pair) for pair in talk.metas}
    if handles["a"] > handles["b"]:
        expected[:2] = ["b", "a"]
    for limit in (1, 5, 14):
        hits = await talk.search("same words", limit=limit)
        assert [hit.sender for hit in hits] == expected[:limit]


@pytest.mark.req("search.ties")
async def test_equals_are_equals_whether_they_are_in_the_shelves_or_not_yet(home: Path) -> None:
    for committed in (1, 6, 11):
        async with open_harness(home.with_name(f"home {committed}")) as talk:
            for number, pair in enumerate(make_pairs(12)):
                await talk.append_messages(pair, "the same words")
                if number == committed:
                    await talk.wait_until_committed()
            expected = [f"crab/user{number}" for number in reversed(range(12))]
            assert await talk.find_senders("same words", limit=12) == expected
            await talk.append_messages(Pair("crab", "user0"), "the same words")
            hit = (await talk.search("same words", limit=1))[0]
            assert (hit.sender, hit.message_id) == ("user0", 1)


async def test_the_latest_of_equal_messages_is_the_one_that_is_shown(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "tide", "tide", "tide", "ebb")
    assert (await talk.search_one("tide")).message_id == 2


@pytest.mark.req("search.limits.hits")
async def test_a_limit_is_taken_for_one_between_one_and_twenty(talk: SearchHarness) -> None:
    for pair in make_pairs(25):
        await talk.append_messages(pair, "tide")
    for limit, expected in [(-5, 1), (0, 1), (1, 1), (7, 7), (20, 20), (10**9, MAX_HITS)]:
        assert len(await talk.search("tide", limit=limit)) == expected


async def test_five_are_found_unless_asked_otherwise(talk: SearchHarness) -> None:
    for pair in make_pairs(8):
        await talk.append_messages(pair, "tide")
    assert len(await talk.search("tide")) == 5


async def test_a_long_query_is_cut_rather_than_refused(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "tide")
    many = " ".join(f"word{number}" for number in range(100_000))
    assert await talk.find_senders(f"tide {many}") == ["crab/user"]
    assert await talk.find_senders(f'"{many}"') == []


# ── Deletion ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.delete")
async def test_a_deleted_conversation_is_not_found_any_more(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "swordfish")
    await talk.set_title(CRAB, "granite")
    await talk.append_summary(CRAB, "basalt")
    await talk.append_messages(OWL, "swordfish too")
    assert len(await talk.search("swordfish granite basalt")) == 2
    await talk.delete(CRAB)
    for query in ("swordfish", "granite", "basalt"):
        hits = await talk.index.search(query, scope=SearchScope())  # at once, whatever is committed
        assert [hit.agent for hit in hits] == ["owl"] * (query == "swordfish")
    assert await talk.find_senders("swordfish granite basalt") == ["owl/user"]


@pytest.mark.req("search.delete")
async def test_one_begun_again_after_it_was_deleted_is_another(talk: SearchHarness) -> None:
    await talk.append_messages(CRAB, "swordfish", "granite", "basalt")
    assert await talk.find_senders("granite") == ["crab/user"]
    await talk.delete(CRAB)
    await talk.append_messages(CRAB, "marble")
    assert await talk.index.search("granite swordfish", scope=SearchScope()) == []
    assert await talk.find_senders("granite swordfish basalt") == []
    hit = await talk.search_one("marble")
    assert (hit.message_id, hit.message_count) == (0, 1)
