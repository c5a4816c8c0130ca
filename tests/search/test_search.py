"""What is found, in which scope and order; the same for committed and recent messages."""

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

# The work is done in threads, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop


def make_pairs(count: int, agent: str = "crab") -> list[Pair]:
    return [Pair(agent, f"user{number}") for number in range(count)]


# ── Matches ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.append.at_once")
async def test_a_message_is_found_as_soon_as_it_was_appended(harness: SearchHarness) -> None:
    for number in range(20):
        await harness.append_messages(CRAB, f"this is about topic{number}")
        hit = await harness.search_one(f"topic{number}")
        assert hit.message_id == number
        assert hit.window[-1].snippet == f"this is about topic{number}"


@pytest.mark.req("search.hit.shape")
async def test_a_hit_describes_its_conversation_and_where_it_matched(
    harness: SearchHarness,
) -> None:
    await harness.append_messages(CRAB, "hello", Message("assistant", "the tide is high"))
    await harness.set_title(CRAB, "Tides")
    hit = await harness.search_one("tide")
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


async def test_a_word_that_was_never_written_is_not_found(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "hello")
    assert await harness.search("goodbye") == []


async def test_a_query_without_words_finds_nothing(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "the x of and ?!")
    for query in ("", " ", "?!", '""', '"', "the of and", "x"):
        assert await harness.search(query) == [], query


@pytest.mark.req("search.one_hit_a_conversation")
async def test_a_conversation_is_found_once_however_often_it_matches(
    harness: SearchHarness,
) -> None:
    await harness.append_messages(CRAB, *["tide"] * 10)
    await harness.append_messages(OWL, "tide and ebb")
    assert sorted(await harness.find_senders("tide")) == ["crab/user", "owl/user"]


@pytest.mark.req("search.compacted")
async def test_compacted_messages_are_found_as_before(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "the anchor is rusty", "what now")
    await harness.append_summary(CRAB, "They spoke of boats.")
    await harness.append_messages(CRAB, "go on")
    hit = await harness.search_one("anchor")
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
    harness: SearchHarness, text: str, queries: list[str]
) -> None:
    await harness.append_messages(CRAB, "something else", text)
    for query in queries:
        assert (await harness.search_one(query)).message_id == 1, query


async def test_a_lone_surrogate_can_be_written_and_searched(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "half \ud83e a crab")
    assert await harness.find_senders("crab \ud83e") == ["crab/user"]
    assert await harness.find_senders("\ud83e") in ([], ["crab/user"])


# ── Weights ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.weights.roles")
async def test_user_messages_weigh_more_than_calls_and_calls_more_than_answers(
    harness: SearchHarness,
) -> None:
    await harness.append_messages(Pair("crab", "c"), Message("assistant", "quartz vein found"))
    await harness.append_messages(Pair("crab", "b"), make_tool_call("quartz", '{"vein":"found"}'))
    await harness.append_messages(Pair("crab", "a"), "quartz vein found")
    for query in ("quartz", "quartz vein", '"quartz vein"', '"quartz vein" found'):
        hits = await harness.search(query)
        assert [hit.sender for hit in hits] == ["a", "b", "c"]
        best = hits[0].score
        assert [round(hit.score / best * 1.5, 3) for hit in hits] == [1.5, 1.3, 1.0]


async def test_weights_stay_the_same_when_most_matches_are_deleted(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(Pair("crab", "c"), Message("assistant", "quartz vein found"))
        await harness.append_messages(
            Pair("crab", "b"), make_tool_call("quartz", '{"vein":"found"}')
        )
        await harness.append_messages(Pair("crab", "a"), "quartz vein found")
        for number in range(20):
            await harness.append_messages(
                Pair("owl", f"user{number}"), "quartz vein found", "granite"
            )
        await harness.wait_until_committed()
        for number in range(20):
            await harness.delete(Pair("owl", f"user{number}"))
        for _ in range(2):
            hits = await harness.search("quartz")
            assert [hit.sender for hit in hits] == ["a", "b", "c"]
            best = hits[0].score
            assert [round(hit.score / best * 1.5, 3) for hit in hits] == [1.5, 1.3, 1.0]
            await harness.wait_until_committed()


@pytest.mark.req("search.weights.title")
async def test_a_title_counts_twice_and_is_enough_on_its_own(harness: SearchHarness) -> None:
    await harness.append_messages(Pair("crab", "a"), "quartz vein found")
    await harness.append_messages(Pair("crab", "b"), "quartz vein found")
    await harness.append_messages(Pair("crab", "c"), "hello there", "something")
    await harness.set_title(Pair("crab", "b"), "quartz")
    await harness.set_title(Pair("crab", "c"), "quartz")
    hits = await harness.search("quartz")
    assert hits[0].sender == "b"
    assert {hit.sender for hit in hits} == {"a", "b", "c"}
    by_title = next(hit for hit in hits if hit.sender == "c")
    assert by_title.message_id == 0
    assert by_title.window[0].snippet == "hello there"


@pytest.mark.req("search.weights.summary")
async def test_a_summary_counts_three_times_and_is_enough_on_its_own(
    harness: SearchHarness,
) -> None:
    for sender in "abc":
        await harness.append_messages(Pair("crab", sender), "quartz vein found", "so it is")
    await harness.append_messages(Pair("crab", "d"), "hello", "there", "again")
    await harness.set_title(Pair("crab", "b"), "quartz")
    await harness.set_title(Pair("crab", "d"), "granite")
    await harness.append_summary(Pair("crab", "c"), "quartz")
    await harness.append_summary(Pair("crab", "d"), "basalt")
    assert [hit.sender for hit in await harness.search("quartz")] == ["c", "b", "a"]
    by_summary = await harness.search_one("basalt")
    assert by_summary.sender == "d"
    assert by_summary.message_id == 2  # the last one that it covers
    assert [item.id for item in by_summary.window] == [0, 1, 2]


async def test_a_later_title_replaces_the_one_before(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "hello")
    await harness.set_title(CRAB, "quartz")
    assert await harness.find_senders("quartz") == ["crab/user"]
    await harness.set_title(CRAB, "granite")
    assert await harness.find_senders("quartz") == []
    assert (await harness.search_one("granite")).title == "granite"
    await harness.append_summary(CRAB, "basalt")
    assert await harness.find_senders("basalt") == ["crab/user"]
    await harness.append_messages(CRAB, "on we go")
    await harness.append_summary(CRAB, "marble")
    assert await harness.find_senders("basalt") == []
    assert (await harness.search_one("marble")).message_id == 1


@pytest.mark.req("search.system_never")
async def test_a_system_message_is_never_found(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, Message("system", "the password is swordfish"), "hello")
    assert await harness.search("swordfish") == []


@pytest.mark.req("search.tool_calls")
async def test_a_call_is_found_by_its_name_and_arguments(harness: SearchHarness) -> None:
    call = make_tool_call(
        "web_fetch", '{"url":"https://tides.example/today","note":"a\\nbuoy"}', "Let me"
    )
    await harness.append_messages(CRAB, "look it up", call)
    for query in ("fetch", "tides", "buoy", "url"):
        hit = await harness.search_one(query)
        assert hit.message_id == 1
        assert hit.window[1].tool_name == "web_fetch"
    assert (await harness.search_one("tides")).window[1].snippet.startswith("web_fetch(")
    assert (await harness.search_one("let")).window[1].snippet == "Let me"


@pytest.mark.req("search.tool_results.only_where_allowed")
async def test_tool_results_are_neither_found_nor_shown_unless_allowed(home: Path) -> None:
    async with open_harness(home, index_tool_results=lambda agent: agent == "owl") as harness:
        for pair in (CRAB, OWL):
            await harness.append_messages(
                pair, "run it please", make_tool_call("bash", "{}"), make_tool_result("swordfish")
            )
        for _ in range(2):
            hit = await harness.search_one("swordfish")
            assert (hit.agent, hit.message_id) == ("owl", 2)
            assert hit.window[2].snippet == "swordfish"
            hits = await harness.search("run")
            shown = {hit.agent: hit.window[2] for hit in hits}
            assert shown["crab"].snippet == ""
            assert shown["crab"].truncated
            assert shown["crab"].tool_name == "bash"
            assert shown["owl"].snippet == "swordfish"
            await harness.wait_until_committed()


@pytest.mark.req("search.tool_results.only_where_allowed")
async def test_a_changed_setting_for_tool_results_applies_to_earlier_messages(
    home: Path,
) -> None:
    allowed: set[str] = set()
    async with open_harness(home, index_tool_results=lambda agent: agent in allowed) as harness:
        await harness.append_messages(
            CRAB, "run it", make_tool_call("bash", "{}"), make_tool_result("swordfish")
        )
        await harness.wait_until_committed()
        assert await harness.find_senders("swordfish") == []
        allowed.add("crab")
        await harness.wait_until_committed()
        assert await harness.find_senders("swordfish") == ["crab/user"]
        allowed.clear()
        assert await harness.find_senders("swordfish") == []
        await harness.restart()
        await harness.wait_until_committed()
        assert await harness.find_senders("swordfish") == []
        assert (await harness.search_one("run")).window[2].snippet == ""


async def test_a_guest_is_named_in_the_window(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "ask the owl", Message("assistant", "hoot", agent="owl"))
    hit = await harness.search_one("hoot")
    assert [item.agent for item in hit.window] == ["", "owl"]


async def test_images_are_ignored(harness: SearchHarness) -> None:
    image = Image(data=b"swordfish" * 10_000)
    await harness.append_messages(CRAB, Message("user", "a picture of a pier", images=(image,)))
    assert await harness.find_senders("pier") == ["crab/user"]
    assert await harness.find_senders("swordfish") == []


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
async def test_quoted_words_must_be_adjacent_and_in_order(harness: SearchHarness) -> None:
    await harness.append_messages(Pair("crab", "a"), "at low tide we walk to the harbour")
    await harness.append_messages(Pair("crab", "b"), "the tide: low and slow")
    await harness.append_messages(Pair("crab", "c"), "low water, then the tide, in the old harbour")
    await harness.append_messages(Pair("crab", "d"), "un café noir 数据库 s'il vous plaît")
    for query, expected in PHRASES:
        assert {hit.sender for hit in await harness.search(query)} == expected, query


# ── Scope ───────────────────────────────────────────────────────────────────────────────────────


SCOPES = [
    (SearchScope(), {"crab/ann", "crab/bob", "owl/ann", "owl/bob"}),
    (SearchScope(agent="crab"), {"crab/ann", "crab/bob"}),
    (SearchScope(sender="ann"), {"crab/ann", "owl/ann"}),
    (SearchScope("owl", "bob"), {"owl/bob"}),
    (SearchScope("owl", "eve"), set()),
    (SearchScope("", ""), set()),
]


@pytest.mark.req("search.scope")
async def test_nothing_is_found_outside_the_scope(harness: SearchHarness) -> None:
    for agent in ("crab", "owl"):
        for sender in ("ann", "bob"):
            await harness.append_messages(
                Pair(agent, sender), "the secret is swordfish", "and more"
            )
            await harness.set_title(Pair(agent, sender), "granite")
            await harness.append_summary(Pair(agent, sender), "basalt")
    for query in ("swordfish", "granite", "basalt", "swordfish granite basalt", '"the secret"'):
        for scope, expected in SCOPES:
            assert set(await harness.find_senders(query, scope=scope)) == expected, (query, scope)


@pytest.mark.req("search.filters.time")
async def test_a_time_range_applies_to_messages_not_conversations(harness: SearchHarness) -> None:
    def when(minute: int) -> datetime:
        return datetime(2026, 1, 1, 0, minute, tzinfo=UTC)

    texts = ["early tide", "late tide", "no match", "last tide"]
    await harness.append_timed(
        CRAB, [(Message("user", text), format_minute(10 + n)) for n, text in enumerate(texts)]
    )
    await harness.append_timed(OWL, [(Message("user", "tide"), format_minute(30))])
    assert set(await harness.find_senders("tide")) == {"crab/user", "owl/user"}
    assert await harness.find_senders("tide", since=when(20)) == ["owl/user"]
    assert await harness.find_senders("tide", until=when(20)) == ["crab/user"]
    assert (await harness.search_one("tide", since=when(11), until=when(12))).message_id == 1
    assert (await harness.search_one("tide", since=when(12), until=when(14))).message_id == 3
    assert await harness.find_senders("tide", since=when(14), until=when(29)) == []
    assert await harness.find_senders("tide", since=when(31)) == []
    naive = when(20).replace(tzinfo=None)
    assert await harness.find_senders("tide", since=naive) == ["owl/user"]


async def test_a_title_outside_the_time_range_counts_for_a_message_inside_it(
    harness: SearchHarness,
) -> None:
    for sender in "ab":
        pair = Pair("crab", sender)
        await harness.append_timed(pair, [(Message("user", "hello"), format_minute(1))])
        await harness.append_timed(pair, [(Message("user", "tide again"), format_minute(50))])
    await harness.set_title(Pair("crab", "b"), "tide")
    since = datetime(2026, 1, 1, 0, 40, tzinfo=UTC)
    first, second = await harness.search("tide", since=since)
    assert (first.sender, second.sender) == ("b", "a")
    assert first.score > second.score


async def test_a_replaced_title_does_not_count_in_a_time_range(home: Path) -> None:
    async with open_harness(home) as harness:
        for sender in "ab":
            await harness.append_timed(
                Pair("crab", sender), [(Message("user", "hello"), format_minute(1))]
            )
        await harness.set_title(Pair("crab", "b"), "tide")
        await harness.wait_until_committed()
        await harness.set_title(Pair("crab", "b"), "ebb")
        for sender in "ab":
            await harness.append_timed(
                Pair("crab", sender), [(Message("user", "tide again"), format_minute(50))]
            )
        since = datetime(2026, 1, 1, 0, 40, tzinfo=UTC)
        for _ in range(2):
            first, second = await harness.search("tide", since=since)
            assert first.score == pytest.approx(second.score)
            await harness.wait_until_committed()


async def test_a_title_ranked_below_a_hundred_others_is_found_in_a_time_range(home: Path) -> None:
    async with open_harness(home) as harness:
        for pair in make_pairs(100):
            await harness.append_messages(pair, "hello")
            await harness.set_title(pair, "tide")
        await harness.append_messages(OWL, "hello")
        await harness.set_title(OWL, "a rather long title with the tide in it somewhere, once")
        since = datetime.fromisoformat(format_minute(harness.minute))
        for _ in range(2):
            assert await harness.find_senders("tide", since=since) == ["owl/user"]
            await harness.wait_until_committed()


@pytest.mark.req("search.filters.before_ranking")
async def test_a_filter_finds_a_message_ranked_below_a_thousand_others(home: Path) -> None:
    async with open_harness(home) as harness:
        for pair in make_pairs(30):
            await harness.append_messages(pair, *["tide tide tide"] * 40)
        await harness.append_messages(
            OWL, "a rather long sentence that has the tide in it somewhere, once"
        )
        for _ in range(2):
            assert await harness.find_senders("tide", scope=SearchScope(agent="owl")) == [
                "owl/user"
            ]
            await harness.wait_until_committed()


@pytest.mark.req("search.chatty")
async def test_a_chatty_conversation_does_not_hide_the_others(home: Path) -> None:
    async with open_harness(home) as harness:
        for _ in range(4):
            await harness.append_messages(CRAB, *["tide tide tide"] * 500)
        for pair in make_pairs(8, "owl"):
            await harness.append_messages(
                pair, "a rather long sentence that has the tide in it somewhere"
            )
        for _ in range(2):
            senders = await harness.find_senders("tide", limit=20)
            assert senders[0] == "crab/user"
            assert len(senders) == 9
            await harness.wait_until_committed()


# ── Order and limits ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.ties")
async def test_equal_hits_are_ordered_by_their_latest_message(harness: SearchHarness) -> None:
    for pair in make_pairs(12):
        await harness.append_messages(pair, "the same words")
    await harness.append_timed(
        Pair("crab", "b"), [(Message("user", "the same words"), format_minute(5000))]
    )
    await harness.append_timed(
        Pair("crab", "a"), [(Message("user", "the same words"), format_minute(5000))]
    )
    expected = ["a", "b", *(f"user{number}" for number in reversed(range(12)))]
    handles = {pair.sender: make_log_name(pair) for pair in harness.metas}
    if handles["a"] > handles["b"]:
        expected[:2] = ["b", "a"]
    for limit in (1, 5, 14):
        hits = await harness.search("same words", limit=limit)
        assert [hit.sender for hit in hits] == expected[:limit]


@pytest.mark.req("search.ties")
async def test_equal_hits_are_ordered_alike_whether_committed_or_not(home: Path) -> None:
    for committed in (1, 6, 11):
        async with open_harness(home.with_name(f"home {committed}")) as harness:
            for number, pair in enumerate(make_pairs(12)):
                await harness.append_messages(pair, "the same words")
                if number == committed:
                    await harness.wait_until_committed()
            expected = [f"crab/user{number}" for number in reversed(range(12))]
            assert await harness.find_senders("same words", limit=12) == expected
            await harness.append_messages(Pair("crab", "user0"), "the same words")
            hit = (await harness.search("same words", limit=1))[0]
            assert (hit.sender, hit.message_id) == ("user0", 1)


async def test_of_equal_messages_the_latest_is_shown(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "tide", "tide", "tide", "ebb")
    assert (await harness.search_one("tide")).message_id == 2


@pytest.mark.req("search.limits.hits")
async def test_a_limit_is_clamped_to_one_to_twenty(harness: SearchHarness) -> None:
    for pair in make_pairs(25):
        await harness.append_messages(pair, "tide")
    for limit, expected in [(-5, 1), (0, 1), (1, 1), (7, 7), (20, 20), (10**9, MAX_HITS)]:
        assert len(await harness.search("tide", limit=limit)) == expected


async def test_the_default_limit_is_five(harness: SearchHarness) -> None:
    for pair in make_pairs(8):
        await harness.append_messages(pair, "tide")
    assert len(await harness.search("tide")) == 5


async def test_a_long_query_is_cut_rather_than_refused(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "tide")
    many = " ".join(f"word{number}" for number in range(100_000))
    assert await harness.find_senders(f"tide {many}") == ["crab/user"]
    assert await harness.find_senders(f'"{many}"') == []


# ── Deletion ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.delete")
async def test_a_deleted_conversation_is_no_longer_found(harness: SearchHarness) -> None:
    await harness.append_messages(CRAB, "swordfish")
    await harness.set_title(CRAB, "granite")
    await harness.append_summary(CRAB, "basalt")
    await harness.append_messages(OWL, "swordfish too")
    assert len(await harness.search("swordfish granite basalt")) == 2
    await harness.delete(CRAB)
    for query in ("swordfish", "granite", "basalt"):
        hits = await harness.index.search(query, scope=SearchScope())  # before any commit
        assert [hit.agent for hit in hits] == ["owl"] * (query == "swordfish")
    assert await harness.find_senders("swordfish granite basalt") == ["owl/user"]


@pytest.mark.req("search.delete")
async def test_a_conversation_begun_again_after_deletion_is_a_new_one(
    harness: SearchHarness,
) -> None:
    await harness.append_messages(CRAB, "swordfish", "granite", "basalt")
    assert await harness.find_senders("granite") == ["crab/user"]
    await harness.delete(CRAB)
    await harness.append_messages(CRAB, "marble")
    assert await harness.index.search("granite swordfish", scope=SearchScope()) == []
    assert await harness.find_senders("granite swordfish basalt") == []
    hit = await harness.search_one("marble")
    assert (hit.message_id, hit.message_count) == (0, 1)
