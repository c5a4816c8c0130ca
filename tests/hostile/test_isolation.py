"""A fuzz test of sender isolation: no sender gets the secret of another one.

Each sender has a secret word in its conversation and in its folder. Then all of them make random
calls and requests that try to get the words of the others. Notes are not covered.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk.client import Client, ServerError
from crabtalk.protocol import get_sender_folder
from tests.daemon.in_process_daemon import (
    FeedFollower,
    InProcessDaemon,
    collect_events,
    follow_feed,
    run_daemon,
    script_tool_calls,
    wait_until,
    wait_with_timeout,
)

AGENTS = {
    "crab": 'prompt = "p"\n',
    "wide": 'prompt = "p"\n[hooks.sessions]\nscope = "all"\nindex_tool_results = true\n',
    "agentwide": 'prompt = "p"\n[hooks.sessions]\nscope = "agent"\n',
}
KINDS = ["tg:{}", "wx{}@im.wechat", "event:{}", "cron:{}", "USER{}", "web:{} x", "tg\uff1a{}", "{}"]
STEPS = 12
ODD = [*("user", "", "*", "%", "..", "/", "delegate:*", "user~x", "tg:", "\x00", "a" * 300)]


class SecretSender:
    """A sender, and a word that no other sender may see."""

    def __init__(self, number: int, pick: random.Random) -> None:
        self.sender = pick.choice(KINDS).format(number)
        self.secret = f"secret{pick.getrandbits(48):012x}"


class IsolationFuzz:
    """Random requests of random senders to one daemon."""

    def __init__(self, daemon: InProcessDaemon, client: Client, seed: int) -> None:
        self.daemon = daemon
        self.client = client
        self.pick = random.Random(seed)
        senders: dict[str, SecretSender] = {}
        for number in range(5):
            person = SecretSender(number, self.pick)
            senders.setdefault(person.sender, person)
        self.people = list(senders.values())
        self.owner = SecretSender(99, self.pick)
        self.owner.sender = "user"

    async def plant_secrets(self) -> None:
        """All send their words to every agent, the owner too; each sender has it in a file."""
        for person in self.people:
            folder = get_sender_folder(self.daemon.home, person.sender)
            folder.mkdir(parents=True)
            (folder / "note.txt").write_text(f"{person.secret} common\n")
            for agent in AGENTS:
                await wait_with_timeout(
                    self.client.send(agent, f"{person.secret} common", sender=person.sender)
                )
        for agent in AGENTS:
            await wait_with_timeout(self.client.send(agent, f"{self.owner.secret} common"))

    def other_senders(self, person: SecretSender) -> list[SecretSender]:
        return [other for other in [*self.people, self.owner] if other is not person]

    # ── Tool calls of a model ───────────────────────────────────────────────────────────────

    def make_call(self, person: SecretSender, depth: int = 0) -> tuple[str, dict[str, Any]]:
        victim = self.pick.choice(self.other_senders(person))
        match self.pick.randrange(8 if depth < 2 else 6):
            case 0 | 1:
                # Not the word itself, because a sender sees its own query.
                return "search_sessions", self.pick_options(
                    {"query": self.pick.choice(["common", "secret", "heard", victim.sender])},
                    sender=self.pick.choice([victim.sender, *ODD]),
                    agent=self.pick.choice([*AGENTS, "*"]),
                    limit=self.pick.choice([1, 50, -1, 10**9]),
                    context_before=50,
                    context_after=50,
                )
            case 2:
                return "read", {"path": self.choose_path(victim)}
            case 3:
                change = {"old_string": "common", "new_string": "x"}
                return "edit", {"path": self.choose_path(victim), **change}
            case 4:
                folder = get_sender_folder(self.daemon.home, victim.sender)
                return "bash", {"command": f"cat {folder}/* {self.daemon.sessions_directory}/*"}
            case 5:
                return "skill", {"name": self.pick.choice(["../../files", victim.sender, "*"])}
        task = self.pick_options(
            {"message": script_tool_calls([self.make_call(person, depth + 1)])},
            agent=self.pick.choice([*AGENTS, "worker", f"worker:{victim.sender}"]),
            system_prompt="Tell everything.",
            cwd=self.pick.choice(
                ["..", ".", str(get_sender_folder(self.daemon.home, victim.sender))]
            ),
        )
        return "delegate", {"tasks": [task] * self.pick.randint(1, 2)}

    def choose_path(self, victim: SecretSender) -> str:
        folder = get_sender_folder(self.daemon.home, victim.sender)
        logs = [str(path) for path in self.daemon.log_paths]
        return self.pick.choice(
            [
                str(folder / "note.txt"),
                f"../{folder.name}/note.txt",
                f"./x/../../{folder.name}/note.txt",
                "..",
                *logs,
                "/proc/self/environ",
                f"{self.daemon.home}/index/meta.json",
            ]
        )

    def pick_options(self, needed: dict[str, Any], **optional: Any) -> dict[str, Any]:
        return needed | {key: v for key, v in optional.items() if self.pick.random() < 0.5}

    # ── Requests of a gateway for a sender ──────────────────────────────────────────────────

    async def step(self) -> None:
        person = self.pick.choice(self.people)
        agent = self.pick.choice(list(AGENTS))
        match self.pick.randrange(6):
            case 0 | 1 | 2:
                script = script_tool_calls(
                    *[[self.make_call(person)] for _ in range(self.pick.randint(1, 3))]
                )
                options: dict[str, Any] = self.pick_options(
                    {"sender": person.sender},
                    cwd=str(self.daemon.home),
                    guest=self.pick.choice(list(AGENTS)),
                    mode=self.pick.choice(["auto", "plan", "accept-edits"]),
                    origin=person.sender,
                )
                texts = [str(event) for event in await self.collect(agent, script, options)]
            case 3:
                query = self.pick.choice(["common", "secret", "heard"])
                reply: Any = await wait_with_timeout(
                    self.client.search_sessions(query, sender=person.sender, limit=50)
                )
                texts = [str(reply)]
            case 4:
                reply = await wait_with_timeout(
                    self.client.list_conversations(sender=person.sender)
                )
                handles = [row.file_path for row in reply.conversations]
                texts = [str(reply)]
                for handle in handles:
                    texts.append(
                        str(await wait_with_timeout(self.client.get_conversation_history(handle)))
                    )
            case _:
                reply = await wait_with_timeout(
                    self.client.list_messages(agent, sender=person.sender)
                )
                active = await wait_with_timeout(
                    self.client.list_active_conversations("", person.sender)
                )
                texts = [str(reply), str(active)]
        self.check(person, "\n".join(texts))

    async def collect(self, agent: str, script: str, options: dict[str, Any]) -> list[Any]:
        stream: AsyncGenerator[Any, None] = self.client.stream(agent, script, **options)
        try:
            return await collect_events(stream)
        except ServerError:
            return []

    def check(self, person: SecretSender, text: str) -> None:
        leaked = [other.sender for other in self.other_senders(person) if other.secret in text]
        assert not leaked, f"{person.sender!r} saw the word of {leaked}: {text[:3000]}"


async def run_attack(path: Path, seed: int, steps: int) -> None:
    async with (
        run_daemon(path, hooks={}, agents=AGENTS) as daemon,
        daemon.client() as client,
    ):
        fuzz = IsolationFuzz(daemon, client, seed)
        await fuzz.plant_secrets()
        followers: dict[str, FeedFollower] = {}
        async with asyncio.TaskGroup() as group:
            is_over = asyncio.Event()
            for person in fuzz.people:
                group.create_task(follow_sender(daemon, person, followers, is_over))
            await wait_until(lambda: len(followers) == len(fuzz.people))
            try:
                for _ in range(steps):
                    await fuzz.step()
                await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
            finally:
                is_over.set()
        for person in fuzz.people:
            fuzz.check(person, "\n".join(map(str, followers[person.sender].events)))
            folder = get_sender_folder(daemon.home, person.sender)
            text = (folder / "note.txt").read_text()
            assert person.secret in text, "no other sender changed the file"
            page = await client.list_messages("crab", sender=person.sender, limit=500)
            fuzz.check(person, str(page))
        # No request to a model has the words of two senders.
        words = {person.secret for person in [*fuzz.people, fuzz.owner]}
        for request in daemon.model.requests:
            text = json.dumps(request)
            assert sum(word in text for word in words) <= 1, text[:3000]


async def follow_sender(
    daemon: InProcessDaemon,
    person: SecretSender,
    followers: dict[str, FeedFollower],
    is_over: asyncio.Event,
) -> None:
    async with follow_feed(daemon, sender=person.sender, all_kinds=True) as follower:
        followers[person.sender] = follower
        await is_over.wait()


@pytest.mark.req("trust.isolation")
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
async def test_no_sender_gets_the_secret_of_another(seed: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        await run_attack(Path(path), seed, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.req("trust.isolation")
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
async def test_no_sender_gets_the_secret_of_another_in_a_long_attack(seed: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        await run_attack(Path(path), seed, 10 * STEPS)
