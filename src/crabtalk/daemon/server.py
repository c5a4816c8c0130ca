"""DaemonServer: what the daemon answers to each request."""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from crabtalk import __version__
from crabtalk.model import ApiError, SettingsError
from crabtalk.protocol import (
    PROTOCOL_VERSION,
    BadRequestError,
    InternalError,
    NotFoundError,
    Server,
    UnavailableError,
    wire,
)
from crabtalk.runtime import (
    DEFAULT_SENDER,
    BusyError,
    CompactionError,
    NothingInFlightError,
    NothingToCompactError,
    Run,
    StopReason,
    UnknownAgentError,
    UnknownConversationError,
    UnknownToolError,
)
from crabtalk.storage import (
    Agent,
    AgentError,
    Pair,
    StorageError,
    check_name,
    read_agent,
    unmask,
)

from .answers import Days, add_conversation, agent_info, archive_list, conversation_message, history
from .config import ConfigError
from .daemon import CRAB, Daemon
from .stream_events import stream_event, token_usage
from .subscriptions import Subscription

PAGE = 100
LONGEST_SENDER = 1024
LONGEST_SOURCE = 512
LONGEST_PATH = 8192
LARGEST_SETTINGS = 256 * 1024
LARGEST_PAYLOAD = 1024 * 1024
LARGEST_PAGE = 500
# Rows of a listing made in one go.
SLICE = 500
# What asking all providers for their models may take.
ASKING = 10.0


class DaemonServer(Server):
    """One per process. What it does not override answers 501."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._started = time.monotonic()

    # ── The daemon itself ───────────────────────────────────────────────────────────────────

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=PROTOCOL_VERSION, server_version=__version__)

    async def get_stats(self, request: wire.GetStats) -> wire.DaemonStats:
        runtime = await self._daemon.ready()
        return wire.DaemonStats(
            uptime_secs=int(time.monotonic() - self._started),
            active_conversations=sum(c.exists for c in runtime.conversations),
            registered_agents=len(runtime.agents),
            active_model=self._daemon.models.active,
            runs=runtime.running,
            problems=self._daemon.problems,
        )

    async def reload(self, request: wire.ReloadMsg) -> None:
        await self._daemon.ready()
        with answered():
            await self._daemon.reload()

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        run = await self._start(request, detached=request.detach)
        waiting = self._daemon.asks.pending(run.pair)
        async with aclosing(run.events()) as events:
            async for event in events:
                if (message := stream_event(event)) is not None:
                    yield message
                if waiting is not None and (again := stream_event(waiting)) is not None:
                    # The turn before this one waits for an answer; whoever asked may be gone.
                    yield again
                    waiting = None

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        runtime = await self._daemon.ready()
        with answered():
            if request.guest:
                runtime.agent(request.guest)
        run = await self._start(request, detached=True)
        done = await run.wait()
        if done.reason is StopReason.ERROR:
            raise InternalError(done.error)
        if done.reason is StopReason.CANCELLED:
            raise InternalError("the turn was killed; what was said by then is kept")
        return wire.SendResponse(
            agent=done.agent, content=done.text, model=done.model, usage=token_usage(done.usage)
        )

    async def _start(self, request: wire.StreamMsg | wire.SendMsg, *, detached: bool) -> Run:
        runtime = await self._daemon.ready()
        if not request.content.strip():
            raise BadRequestError("the message is empty; say something in content")
        if len(request.sender) > LONGEST_SENDER:
            raise BadRequestError(f"sender is longer than {LONGEST_SENDER} characters; shorten it")
        cwd = await directory(request.cwd) if request.cwd else None
        with answered():
            return runtime.start(
                request.agent,
                request.content,
                sender=request.sender,
                guest=request.guest,
                cwd=cwd,
                tool_choice=request.tool_choice,
                detached=detached,
            )

    async def kill(self, request: wire.KillMsg) -> None:
        runtime = await self._daemon.ready()
        with answered():
            await runtime.kill(request.agent, request.sender)

    async def reply_to_ask(self, request: wire.ReplyToAsk) -> None:
        pair = Pair(request.agent, request.sender or DEFAULT_SENDER)
        if not self._daemon.asks.reply(pair, request.content, request.ask_id):
            raise NotFoundError("nothing is being asked in this conversation")

    async def steer_session(self, request: wire.SteerSessionMsg) -> None:
        runtime = await self._daemon.ready()
        if not request.content.strip():
            raise BadRequestError("the message is empty; say something in content")
        with answered():
            runtime.steer(request.agent, request.content, request.sender)

    async def compact(self, request: wire.CompactMsg) -> wire.CompactResponse:
        runtime = await self._daemon.ready()
        with answered():
            archive = await runtime.compact(request.agent, request.sender)
        return wire.CompactResponse(summary=archive.summary)

    def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        return self._daemon.feed.subscribe(
            request.agent,
            request.sender,
            all_kinds=request.all_kinds,
            waiting=self._daemon.asks.waiting(),
        )

    # ── Events between agents ───────────────────────────────────────────────────────────────

    async def subscribe_event(self, request: wire.SubscribeEventMsg) -> wire.SubscriptionInfo:
        source = checked_source(request.source)
        agent = await self._agent(request.target_agent)
        with answered():
            new = await self._daemon.bus.subscribe(source, agent.name, once=request.once)
        return subscription_info(new)

    async def unsubscribe_event(self, request: wire.UnsubscribeEventMsg) -> None:
        await self._daemon.ready()
        with answered():
            removed = await self._daemon.bus.unsubscribe(request.id)
        if not removed:
            raise NotFoundError(f"no subscription has the id {request.id}")

    async def list_subscriptions(self, request: wire.ListSubscriptionsMsg) -> wire.SubscriptionList:
        await self._daemon.ready()
        found = self._daemon.bus.subscriptions
        return wire.SubscriptionList(subscriptions=[subscription_info(one) for one in found])

    async def publish_event(self, request: wire.PublishEventMsg) -> None:
        await self._daemon.ready()
        source = checked_source(request.source)
        if len(request.payload) > LARGEST_PAYLOAD:
            raise BadRequestError(f"a payload may have {LARGEST_PAYLOAD} characters; send less")
        with answered():
            await self._daemon.bus.publish(source, request.payload)

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def list_active_conversations(
        self, request: wire.ListActiveConversationsMsg
    ) -> wire.ActiveConversationList:
        now = self._daemon.clock.seconds()
        return wire.ActiveConversationList(
            conversations=[
                wire.ActiveConversationInfo(
                    agent=conversation.pair.agent,
                    sender=conversation.pair.sender,
                    message_count=conversation.meta.message_count,
                    alive_secs=int(now - conversation.since),
                    title=conversation.meta.title,
                )
                for conversation in self._daemon.runtime.conversations
                if conversation.exists
                and request.agent in ("", conversation.pair.agent)
                and request.sender in ("", conversation.pair.sender)
            ]
        )

    async def list_conversations(self, request: wire.ListConversationsMsg) -> wire.ConversationList:
        with answered():
            found = await self._daemon.storage.conversations(request.agent, request.sender)
        found.sort(key=lambda entry: (entry[1].updated_at, entry[0]), reverse=True)
        days = Days(datetime.now().astimezone())
        answer = wire.ConversationList()
        for start in range(0, len(found), SLICE):
            for handle, meta in found[start : start + SLICE]:
                add_conversation(answer, handle, meta, days)
            await asyncio.sleep(0)  # others have their turn
        return answer

    async def get_conversation_history(
        self, request: wire.GetConversationHistoryMsg
    ) -> wire.ConversationHistory:
        pair = await self._resolve(request.file_path)
        with answered():
            stored = await self._daemon.storage.read(pair)
        if stored is None:
            raise no_handle(request.file_path)
        return await asyncio.to_thread(history, stored)  # as long as the conversation is

    async def delete_conversation(self, request: wire.DeleteConversationMsg) -> None:
        runtime = await self._daemon.ready()
        pair = await self._resolve(request.file_path)
        with answered():
            await runtime.delete(*pair)

    async def _resolve(self, handle: str) -> Pair:
        with answered():
            pair = await self._daemon.storage.resolve(handle)
        if pair is None:
            raise no_handle(handle)
        return pair

    async def list_messages(self, request: wire.ListMessagesMsg) -> wire.MessagePage:
        limit = min(request.limit or PAGE, LARGEST_PAGE)
        with answered():
            page = await self._daemon.storage.page(pair_of(request), request.offset, limit)
        if page is None:
            raise no_conversation(request)
        return wire.MessagePage(
            messages=[conversation_message(record) for record in page.messages],
            total=page.total,
            next_offset=page.next_offset,
        )

    async def list_archives(self, request: wire.ListArchivesMsg) -> wire.ArchiveList:
        with answered():
            archives = await self._daemon.storage.archives(pair_of(request))
        if archives is None:
            raise no_conversation(request)
        return archive_list(archives)

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        runtime = await self._daemon.ready()
        agents = sorted(runtime.agents.values(), key=lambda agent: agent.name)
        return wire.AgentList(agents=[agent_info(agent) for agent in agents])

    async def get_agent(self, request: wire.GetAgentMsg) -> wire.AgentInfo:
        return agent_info(await self._agent(request.name))

    async def create_agent(self, request: wire.CreateAgentMsg) -> wire.AgentInfo:
        runtime = await self._daemon.ready()
        async with self._daemon.changing():
            with answered():
                check_name(request.name)
                stored = await self._daemon.storage.agent(request.name)
            if stored is not None or request.name in runtime.agents:
                raise BadRequestError(
                    f"an agent called {request.name!r} is there already; "
                    "update it, or choose another name"
                )
            with answered():
                document = unmask(parse_settings(request.config), None)
                prompt = bounded(request.prompt)
                return await self._save(read_agent(request.name, document, prompt))

    async def update_agent(self, request: wire.UpdateAgentMsg) -> wire.AgentInfo:
        runtime = await self._daemon.ready()
        async with self._daemon.changing():
            with answered():
                check_name(request.name)
                stored = await self._written(request.name) or runtime.agents.get(request.name)
                prompt = bounded(request.prompt) or (stored.prompt if stored is not None else "")
                document = unmask(parse_settings(request.config), stored)
                return await self._save(read_agent(request.name, document, prompt))

    async def _written(self, name: str) -> Agent | None:
        """What its file says now, which a person may have changed; a broken one says nothing."""
        try:
            return await self._daemon.storage.agent(name)
        except AgentError:
            return None

    async def _save(self, agent: Agent) -> wire.AgentInfo:
        """On disk first: what is acknowledged survives."""
        await self._daemon.storage.save_agent(agent)
        self._daemon.register(agent)
        return agent_info(agent)

    async def delete_agent(self, request: wire.DeleteAgentMsg) -> None:
        runtime = await self._daemon.ready()
        async with self._daemon.changing():
            with answered():
                check_name(request.name)
                deleted = await self._daemon.storage.delete_agent(request.name)
            if not deleted and request.name not in runtime.agents:
                raise no_agent(request.name)
            self._daemon.unregister(request.name)

    async def rename_agent(self, request: wire.RenameAgentMsg) -> wire.AgentInfo:
        await self._daemon.ready()
        async with self._daemon.changing():
            agent = await self._agent(request.old_name)
            if request.new_name == agent.name:
                return agent_info(agent)
            if agent.name == CRAB.name:
                raise BadRequestError(
                    "crab keeps its name; copy agents/crab.toml to have it under another"
                )
            with answered():
                check_name(request.new_name)
                if await self._daemon.storage.agent(agent.name) is None:
                    raise no_agent(agent.name)
                return await self._rename(agent, request.new_name)

    async def _rename(self, agent: Agent, name: str) -> wire.AgentInfo:
        import msgspec

        await self._daemon.storage.rename_agent(agent.name, name)
        renamed = msgspec.structs.replace(agent, name=name)
        self._daemon.register(renamed)
        self._daemon.unregister(agent.name)
        return agent_info(renamed)

    async def _agent(self, name: str) -> Agent:
        runtime = await self._daemon.ready()
        agent = runtime.agents.get(name)
        if agent is None:
            raise no_agent(name)
        return agent

    async def list_skills(self, request: wire.ListSkillsMsg) -> wire.SkillList:
        await self._daemon.ready()
        await self._daemon.skills.refresh()
        return wire.SkillList(
            skills=[
                wire.SkillInfo(
                    name=name,
                    source=source,
                    source_kind=wire.LOCAL if source == "local" else wire.EXTERNAL,
                )
                for name, source in self._daemon.skills.list()
            ]
        )

    # ── Models ──────────────────────────────────────────────────────────────────────────────

    async def list_models(self, request: wire.ListModelsMsg) -> wire.ModelList:
        with answered():
            names = await self._model_names()
            active = self._daemon.models.active
            if not active and names:
                active = await self._daemon.models.default_model()
        return wire.ModelList(
            models=[wire.ModelInfo(name=name, active=name == active) for name in names]
        )

    async def set_active_model(self, request: wire.SetActiveModelMsg) -> None:
        if not request.model.strip():
            raise BadRequestError("the model has no name; `crabtalkd models` lists those there are")
        async with self._daemon.changing():
            with answered():
                registry = await self._daemon.models.registry()
                names = await self._model_names()
                if not registry.entries:
                    raise NotFoundError("no model is set up; `crabtalkd setup` helps with that")
                if names and request.model not in names:
                    raise NotFoundError(
                        f"no provider offers {request.model[:80]!r}; "
                        f"there are {', '.join(names[:10])}"
                    )
                await self._daemon.storage.configure("daemon", "model", request.model)
                registry.prefer(request.model)

    async def _model_names(self) -> list[str]:
        try:
            async with asyncio.timeout(ASKING):
                return [model.name for model in await self._daemon.models.models()]
        except TimeoutError:
            raise UnavailableError("the providers do not say what they offer; try later") from None


@contextmanager
def answered() -> Iterator[None]:
    """What the rooms below refuse, with the wire's codes."""
    try:
        yield
    except (UnknownAgentError, UnknownConversationError, NothingInFlightError) as error:
        raise NotFoundError(str(error)) from error
    except (NothingToCompactError, AgentError, UnknownToolError) as error:
        raise BadRequestError(str(error)) from error
    except BusyError as error:
        raise UnavailableError(str(error)) from error
    except (CompactionError, StorageError, ConfigError, SettingsError, ApiError) as error:
        raise InternalError(str(error)) from error


async def directory(text: str) -> Path:
    """A working directory from the wire: it must be one, here, whatever the client's is."""
    path = Path(text[:LONGEST_PATH])
    if not path.is_absolute() or "\0" in text:
        raise BadRequestError(f"cwd must be an absolute path, not {text[:80]!r}")
    # Unlike Path's, it never raises: a path too long, or out of reach, is no directory either.
    if not await asyncio.to_thread(os.path.isdir, path):
        raise BadRequestError(f"cwd {text[:80]!r} is no directory on the daemon's machine")
    return path


def checked_source(source: str) -> str:
    if not source.strip():
        raise BadRequestError("the source is empty; name one, such as agent:crab:done")
    if len(source) > LONGEST_SOURCE:
        raise BadRequestError(f"source is longer than {LONGEST_SOURCE} characters; shorten it")
    return source


def subscription_info(one: Subscription) -> wire.SubscriptionInfo:
    return wire.SubscriptionInfo(
        id=one.id, source=one.source, target_agent=one.target_agent, once=one.once
    )


def bounded(text: str) -> str:
    """Settings and prompts; a model could not read more anyway."""
    if len(text) > LARGEST_SETTINGS:
        raise BadRequestError(f"config and prompt may have {LARGEST_SETTINGS} characters each")
    return text


def parse_settings(text: str) -> dict[str, Any]:
    try:
        document = json.loads(bounded(text) or "{}")
    except ValueError as error:
        raise BadRequestError(f"config is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequestError("config is nested too deeply") from None
    if not isinstance(document, dict):
        raise BadRequestError("config must be a JSON object; {} has all the defaults")
    return document


def pair_of(request: wire.ListMessagesMsg | wire.ListArchivesMsg) -> Pair:
    return Pair(request.agent, request.sender or DEFAULT_SENDER)


def no_conversation(request: wire.ListMessagesMsg | wire.ListArchivesMsg) -> NotFoundError:
    agent, sender = pair_of(request)
    return NotFoundError(f"{agent[:80]} has had no conversation with {sender[:80]} yet")


def no_handle(handle: str) -> NotFoundError:
    return NotFoundError(f"no conversation has the handle {handle[:80]!r}; list_conversations does")


def no_agent(name: str) -> NotFoundError:
    return NotFoundError(f"no agent is called {name[:80]!r}")
