"""The index compared with a dict of all texts, through any operations, restarts and crashes."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from crabtalk.model.messages import Message
from crabtalk.search import SearchScope
from crabtalk.storage import FileStorage, MemoryStorage, Pair
from tests.search.search_harness import SearchHarness, make_tool_call, make_tool_result

T = TypeVar("T")
PAIRS = [Pair(agent, sender) for agent in ("crab", "owl") for sender in ("ann", "bob", "tg:1")]
WORDS = ["granite", "basalt", "marble", "数据", "naïve", "snake_case"]
ANY_PAIR = st.sampled_from(PAIRS)
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
MESSAGES = st.one_of(
    TEXTS.map(lambda text: Message("user", text)),
    TEXTS.map(lambda text: Message("assistant", text)),
    TEXTS.map(lambda text: make_tool_call("bash", f'{{"command":"{text}"}}')),
    TEXTS.map(make_tool_result),
    TEXTS.map(lambda text: Message("system", text)),
)


class ExpectedTexts:
    """The texts that one conversation is found by."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.title = ""
        self.summary = ""

    def has_word(self, word: str) -> bool:
        return any(word in text.split() for text in (*self.messages, self.title, self.summary))


class SessionIndexMachine(RuleBasedStateMachine):
    """The index in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.expected: dict[Pair, ExpectedTexts] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.harness = SearchHarness(MemoryStorage())

    def teardown(self) -> None:
        self.run(self.harness.index.close())
        self.run(self.harness.storage.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

    @rule(pair=ANY_PAIR, messages=st.lists(MESSAGES, min_size=1, max_size=3))
    def append_messages(self, pair: Pair, messages: list[Message]) -> None:
        self.run(self.harness.append_messages(pair, *messages))
        expected = self.expected.setdefault(pair, ExpectedTexts())
        for message in messages:
            if message.tool_calls:
                expected.messages.append(message.tool_calls[0].arguments[12:-2])
            elif message.role in ("user", "assistant"):
                expected.messages.append(message.text)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), text=TEXTS)
    def set_title(self, data: st.DataObject, text: str) -> None:
        pair = data.draw(st.sampled_from(sorted(self.expected)))
        self.run(self.harness.set_title(pair, text))
        self.expected[pair].title = text

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), text=TEXTS)
    def append_summary(self, data: st.DataObject, text: str) -> None:
        pair = data.draw(st.sampled_from(sorted(self.expected)))
        self.run(self.harness.append_summary(pair, text))
        self.expected[pair].summary = text

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(sorted(self.expected)))
        self.run(self.harness.delete(pair))
        del self.expected[pair]

    @rule()
    def commit(self) -> None:
        self.run(self.harness.wait_until_committed())

    @rule(milliseconds=st.integers(0, 20))
    def index_briefly(self, milliseconds: int) -> None:
        """A commit may get as far as it gets in this time."""
        self.run(self.harness.index_for(milliseconds / 1000))

    @rule(
        word=st.sampled_from(WORDS),
        agent=st.sampled_from([None, "crab", "owl"]),
        sender=st.sampled_from([None, "ann", "tg:1"]),
    )
    def search(self, word: str, agent: str | None, sender: str | None) -> None:
        hits = self.run(self.harness.search(word, limit=20, scope=SearchScope(agent, sender)))
        pairs = [Pair(hit.agent, hit.sender) for hit in hits]
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == {
            pair
            for pair, texts in self.expected.items()
            if texts.has_word(word)
            and agent in (None, pair.agent)
            and sender in (None, pair.sender)
        }
        for hit in hits:
            texts = self.expected[Pair(hit.agent, hit.sender)]
            assert hit.title == texts.title
            assert (
                hit.message_count == self.harness.metas[Pair(hit.agent, hit.sender)].message_count
            )
            assert hit.message_id in [item.id for item in hit.window]

    @invariant()
    def committed_documents_are_counted_once(self) -> None:
        statistics = self.harness.index.statistics()
        if statistics.is_current:
            view = self.harness.index._indexer.view
            assert view is not None
            expected = sum(len(texts.messages) for texts in self.expected.values())
            assert statistics.messages == view.messages.documents == expected
            assert view.titles.documents == sum(
                bool(texts.title) for texts in self.expected.values()
            )
            summaries = sum(bool(texts.summary) for texts in self.expected.values())
            assert view.summaries.documents == summaries


class FileSessionIndexMachine(SessionIndexMachine):
    """The index in files, with restarts and crashes."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.home = Path(self.directory.name)
        self.index = self.home / "index" / "sessions"
        self.harness = SearchHarness(FileStorage(self.home, flush=False), self.index)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()

    @rule()
    def restart(self) -> None:
        self.run(self.harness.restart())
        self.run(self.harness.wait_until_committed())

    @rule(milliseconds=st.integers(0, 20))
    def crash(self, milliseconds: int) -> None:
        """The next index has only the files that exist at some moment of a commit."""
        self.run(self.harness.index_for(milliseconds / 1000))
        copy = self.home / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        while self.index.exists():
            try:
                shutil.copytree(self.index, copy, dirs_exist_ok=True)
                break
            except shutil.Error:  # a file was removed while it was copied
                shutil.rmtree(copy, ignore_errors=True)
        self.run(self.harness.index.close())
        shutil.rmtree(self.index, ignore_errors=True)
        if copy.exists():
            copy.rename(self.index)
        self.run(self.harness.restart())
        self.run(self.harness.wait_until_committed())

    @rule()
    def lose_the_index(self) -> None:
        self.run(self.harness.index.close())
        shutil.rmtree(self.index, ignore_errors=True)
        self.run(self.harness.restart())
        self.run(self.harness.wait_until_committed())


def test_an_index_in_memory_finds_what_was_appended_and_nothing_else() -> None:
    run_state_machine_as_test(
        SessionIndexMachine, settings=settings(max_examples=10, stateful_step_count=25)
    )


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_an_index_in_files_finds_the_same_after_restarts_crashes_and_loss(count: int) -> None:
    run_state_machine_as_test(
        FileSessionIndexMachine, settings=settings(max_examples=count, stateful_step_count=25)
    )
