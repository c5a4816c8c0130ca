"""SubscriptionFile: the daemon changes it, people edit it, and neither loses the other's text."""

import asyncio
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crabtalk.daemon.events.subscription_file import SubscriptionFile
from crabtalk.storage import StorageError, Subscription

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop

BY_HAND = """\
# What chains our agents.

# The scout reports to crab.
[[subscription]]
target_agent = "crab" # who enriches
id = 7
source = "agent:scout:done"
note = "ours to keep"

# Feeds, all of them:

# News.
[[subscription]]
id = 3
source = 'rss:fetch'
target_agent = "scout"
once = true
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events" / "subscriptions.toml"


@pytest.fixture
def file(path: Path) -> SubscriptionFile:
    return SubscriptionFile(path)


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())


@pytest.mark.req("events.file")
async def test_keys_may_have_any_order_and_once_defaults_to_false(
    file: SubscriptionFile, path: Path
) -> None:
    assert await file.load() == []
    write_file(path, BY_HAND)
    assert await file.load() == [
        Subscription(7, "agent:scout:done", "crab"),
        Subscription(3, "rss:fetch", "scout", once=True),
    ]


@pytest.mark.req("events.file")
async def test_each_subscription_is_written_as_a_table_in_a_private_file(
    file: SubscriptionFile, path: Path
) -> None:
    await file.add("agent:scout:done", "crab", once=False)
    await file.add('a "quoted" 日 \t\x7f source', "twin", once=True)
    assert tomllib.loads(path.read_text()) == {
        "subscription": [
            dict(id=1, source="agent:scout:done", target_agent="crab", once=False),
            dict(id=2, source='a "quoted" 日 \t\x7f source', target_agent="twin", once=True),
        ]
    }
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.req("events.ids")
async def test_ids_continue_from_the_highest_and_are_never_reused(
    file: SubscriptionFile, path: Path
) -> None:
    write_file(path, BY_HAND)
    await file.load()
    assert (await file.add("a", "crab", once=False)).id == 8
    assert await file.remove([8, 99]) == {8}
    assert (await file.add("a", "crab", once=False)).id == 9
    assert await file.remove([8]) == set()


@pytest.mark.req("events.comments")
async def test_a_change_keeps_everything_else_in_the_file(
    file: SubscriptionFile, path: Path
) -> None:
    write_file(path, BY_HAND)
    added = await file.add("x", "crab", once=False)
    assert path.read_text().startswith(f"{BY_HAND}\n[[subscription]]\nid = 8\n")
    await file.remove([added.id])
    assert path.read_text().strip() == BY_HAND.strip()
    await file.remove([7])
    text = path.read_text()
    assert text.startswith("# What chains our agents.\n\n")
    assert "# Feeds, all of them:\n\n# News.\n[[subscription]]\nid = 3\n" in text
    assert "The scout reports" not in text
    await file.remove([3])
    assert "# Feeds, all of them:" in path.read_text()
    assert await file.load() == []


@pytest.mark.req("events.comments")
async def test_subtables_and_other_keys_are_kept_and_subtables_are_removed_with_their_table(
    file: SubscriptionFile, path: Path
) -> None:
    text = 'kept = []\n\n[[ subscription ]]\r\nid = 1\r\nsource = "a"\r\ntarget_agent = "crab"\r\n'
    write_file(path, f'{text}\n[subscription.more]\nx = 1\n\n[other]\n"[[subscription]]" = 1\n')
    await file.add("b", "crab", once=False)
    assert tomllib.loads(path.read_text())["subscription"][0]["more"] == {"x": 1}
    assert await file.remove([1]) == {1}
    document = tomllib.loads(path.read_text())
    assert [table["id"] for table in document.pop("subscription")] == [2]
    assert document == {"kept": [], "other": {"[[subscription]]": 1}}


BROKEN = {
    "no TOML": "[[subscription]\n",
    "no UTF-8": "\udcff",
    "no table": "subscription = 3\n",
    "no tables": "subscription = [1]\n",
    "one table": '[subscription]\nid = 1\nsource = "a"\ntarget_agent = "crab"\n',
    "no id": '[[subscription]]\nsource = "a"\ntarget_agent = "crab"\n',
    "an id that is text": '[[subscription]]\nid = "1"\nsource = "a"\ntarget_agent = "crab"\n',
    "an id below zero": '[[subscription]]\nid = -1\nsource = "a"\ntarget_agent = "crab"\n',
    "no source": '[[subscription]]\nid = 1\ntarget_agent = "crab"\n',
    "an empty source": '[[subscription]]\nid = 1\nsource = ""\ntarget_agent = "crab"\n',
    "once a number": '[[subscription]]\nid = 1\nsource = "a"\ntarget_agent = "crab"\nonce = 1\n',
    "an id twice": '[[subscription]]\nid = 1\nsource = "a"\ntarget_agent = "crab"\n' * 2,
}


@pytest.mark.req("events.broken_file")
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
async def test_an_invalid_file_is_named_and_not_changed(
    file: SubscriptionFile, path: Path, text: str
) -> None:
    data = text.encode(errors="surrogateescape")
    path.parent.mkdir()
    path.write_bytes(data)
    for work in (file.load(), file.add("b", "crab", once=False), file.remove([1])):
        with pytest.raises(StorageError, match=r"subscriptions\.toml cannot be used: .*; mend it"):
            await work
    assert path.read_bytes() == data


@pytest.mark.req("events.broken_file")
async def test_tables_in_a_form_we_cannot_edit_are_read_but_never_rewritten(
    file: SubscriptionFile, path: Path
) -> None:
    text = 'subscription = [{ id = 1, source = "a", target_agent = "crab" }]\n'
    write_file(path, text)
    assert await file.load() == [Subscription(1, "a", "crab")]
    for work in (file.add("b", "crab", once=False), file.remove([1])):
        with pytest.raises(StorageError, match=r"cannot be changed safely; write each .*\[\["):
            await work
    assert path.read_text() == text


@pytest.mark.req("events.broken_file")
async def test_edits_by_a_person_between_two_changes_are_respected(
    file: SubscriptionFile, path: Path
) -> None:
    for source in ("a", "b"):
        await file.add(source, "crab", once=False)
    text = path.read_text()
    inline = 'subscription = [{ id = 1, source = "a", target_agent = "crab" }]\n'
    for other in (inline, "oops", text.replace("id = 2", "id = 1")):
        path.write_text(other)
        with pytest.raises(StorageError):
            await file.add("c", "crab", once=False)
        assert path.read_text() == other
    path.write_text(text.replace('"b"', '"B"'))  # the same length as before
    assert (await file.add("c", "crab", once=False)).id == 3
    assert [subscription.source for subscription in await file.load()] == ["a", "B", "c"]
    path.unlink()
    assert (await file.add("d", "crab", once=False)).id == 4
    assert await SubscriptionFile(path).load() == [Subscription(4, "d", "crab")]


@pytest.mark.req("events.broken_file")
async def test_a_path_that_is_not_a_file_is_an_error(file: SubscriptionFile, path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StorageError, match="is not a file; move it away"):
        await file.load()


@pytest.mark.req("events.file")
async def test_leftovers_of_a_crashed_change_are_removed(
    file: SubscriptionFile, path: Path
) -> None:
    write_file(path, BY_HAND)
    leftover = path.with_name(".subscriptions.toml.999999999.new")
    leftover.write_text("half")
    await file.load()
    assert not leftover.exists()


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
CHANGES = st.lists(st.tuples(NAMES, NAMES, st.booleans()) | st.integers(1, 8), max_size=8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES)
def test_the_file_has_the_result_of_any_sequence_of_changes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, bool] | int]
) -> None:
    path = tmp_path_factory.mktemp("home") / "subscriptions.toml"
    expected: dict[int, Subscription] = {}

    async def carry_out() -> list[Subscription]:
        file = SubscriptionFile(path)
        for change in changes:
            if isinstance(change, int):
                assert await file.remove([change]) == expected.keys() & {change}
                expected.pop(change, None)
            else:
                source, target, once = change
                new = await file.add(source, target, once=once)
                assert new == Subscription(new.id, source, target, once)
                expected[new.id] = new
        return await SubscriptionFile(path).load()

    assert asyncio.run(carry_out()) == list(expected.values())
