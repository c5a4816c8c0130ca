"""Client: one typed method per request, so a program can use all of the protocol.

The module is long because there are many requests; each method only builds one.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any

from crabtalk.protocol import PROTOCOL_VERSION, ROUTES, ReplyShape, wire
from crabtalk.transport import Endpoint, RunFiles, default_home

from .connection_pool import ConnectionPool
from .errors import ServerError, UnexpectedReplyError
from .events import Event
from .keyed_delivery import KeyedDelivery, RecoverCallback

JsonConfig = str | Mapping[str, Any]


def connect(
    address: str | None = None,
    *,
    home: Path | str | None = None,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    client: str = "python",
    timeout: float | None = 30.0,
    connect_timeout: float = 5.0,
    reconnect_timeout: float = 30.0,
    recover: RecoverCallback | None = None,
) -> "Client":
    """Return a client for a daemon, to be used as `async with connect() as c:`.

    Without an address it finds the daemon of `home` (else `$CRABTALK_HOME`, else `~/.crabtalk`):
    its Unix socket, or its TCP port and token. With an address (`unix:PATH`, `tcp:HOST:PORT`,
    `tls:HOST:PORT`) it connects there and sends `token` where one is required. `timeout` bounds
    the requests that are answered at once; turns have no time limit.

    `stream`, `send` and `steer_session` give each message a key. When the connection is lost, they
    continue on another one: they look for the daemon for `reconnect_timeout` seconds, or wait for
    `recover`, which returns when a daemon answers. With `reconnect_timeout=0` and no `recover`,
    messages have only the keys you give, and a lost connection is a ConnectionClosedError at once.
    """
    if address is not None:
        endpoint = Endpoint.parse(address, token=token, tls=tls)
        pool = ConnectionPool(
            lambda: [endpoint],
            client=client,
            connect_timeout=connect_timeout,
            location=f"at {endpoint}",
        )
    else:
        root = Path(home).expanduser().absolute() if home is not None else default_home()
        pool = ConnectionPool(
            RunFiles.for_home(root).find_endpoints,
            client=client,
            connect_timeout=connect_timeout,
            location=f"in {root}",
            start_command="crabtalkd run" if home is None else f"crabtalkd run --home {root}",
        )
    delivery = KeyedDelivery(
        pool,
        client=client,
        timeout=timeout,
        reconnect_timeout=reconnect_timeout,
        recover=recover,
    )
    return Client(pool, delivery, client=client, timeout=timeout)


class Client:
    """A connection to a daemon. Tasks may share it: requests do not wait for each other.

    An error answer is raised as ServerError. A call that is cancelled, or times out, closes its
    connection: the daemon may still complete the request. The next call finds a daemon that was
    restarted. Only `stream`, `send` and `steer_session` are resent when their connection is lost,
    because only they have a key.
    """

    def __init__(
        self, pool: ConnectionPool, delivery: KeyedDelivery, *, client: str, timeout: float | None
    ) -> None:
        self._pool = pool
        self._delivery = delivery
        self._name = client
        self._timeout = timeout

    async def __aenter__(self) -> "Client":
        await self._pool.ensure_connected()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._delivery.close()
        self._pool.close()
        # Transports close when the loop runs next; let it, or the loop may end before they do.
        await asyncio.sleep(0)

    # ── The two primitives ──────────────────────────────────────────────────────────────────

    async def request(
        self,
        message: wire.ClientMessage,
        timeout: float | None = None,  # noqa: ASYNC109 - cheaper than asyncio.timeout, see Channel
    ) -> wire.ServerMessage:
        """Send any request that has one answer, and return that answer.

        Raises ServerError for an error, TimeoutError when none arrives in `timeout` seconds.
        """
        async with self._pool.lease() as lease:
            lease.channel.send(message)
            reply = await lease.channel.receive(timeout)
            lease.is_complete = True
        if reply.WhichOneof("msg") == "error":
            raise ServerError(reply.error.code, reply.error.message)
        return reply

    async def request_stream(
        self, message: wire.ClientMessage
    ) -> AsyncGenerator[wire.ServerMessage, None]:
        """Send any request that is answered by a stream, and yield all of the stream's messages.

        Closing the generator closes the connection, and the daemon then ends the stream.
        """
        async with self._pool.lease() as lease:
            channel = lease.channel
            channel.send(message)
            while True:
                reply = await channel.receive()
                kind = reply.WhichOneof("msg")
                if kind == "error":
                    lease.is_complete = True
                    raise ServerError(reply.error.code, reply.error.message)
                if kind == "stream" and reply.stream.HasField("end"):
                    lease.is_complete = True
                    yield reply
                    return
                yield reply

    async def _request_payload(self, request: str, payload: Any, *, timed: bool = True) -> Any:
        """Send a request by name; return the payload of its answer, None for a Pong."""
        message = wire.ClientMessage(**{request: payload})
        reply = await self.request(message, self._timeout if timed else None)
        return unwrap_reply(request, reply)

    async def _stream_payloads(self, request: str, payload: Any) -> AsyncGenerator[Any, None]:
        message = wire.ClientMessage(**{request: payload})
        async with aclosing(self.request_stream(message)) as replies:
            async for reply in replies:
                yield unwrap_reply(request, reply)

    # ── Greeting and the daemon itself ──────────────────────────────────────────────────────

    async def hello(self) -> wire.WelcomeMsg:
        """Return the version of the daemon and its optional features."""
        request = wire.HelloMsg(
            protocol_version=PROTOCOL_VERSION, client=self._name, wants_features=True
        )
        reply: wire.WelcomeMsg = await self._request_payload("hello", request)
        return reply

    async def ping(self) -> None:
        await self._request_payload("ping", wire.Ping())

    async def get_config(self) -> wire.ConfigMsg:
        """Always raises ServerError 410: the configuration is a file in the daemon's home."""
        reply: wire.ConfigMsg = await self._request_payload("get_config", wire.GetConfig())
        return reply

    async def reload(self) -> None:
        await self._request_payload("reload", wire.ReloadMsg())

    async def get_stats(self) -> wire.DaemonStats:
        reply: wire.DaemonStats = await self._request_payload("get_stats", wire.GetStats())
        return reply

    async def extension(self, payload: bytes) -> bytes:
        reply: bytes = await self._request_payload("extension", payload)
        return reply

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        agent: str,
        content: str,
        *,
        sender: str | None = None,
        cwd: str | None = None,
        guest: str | None = None,
        tool_choice: str | None = None,
        mode: str | None = None,
        unattended: bool | None = None,
        origin: str | None = None,
        key: str | None = None,
    ) -> wire.SendResponse:
        """Run one turn and return the complete answer. No deadline: a turn may take minutes.

        The run is not tied to a connection: cancelling this call does not stop it, `kill` does.
        When the connection is lost, the message is resent with the same key, and the turn still
        runs once; without a `key` the client makes one. A turn that died with its daemon is
        ServerError 500, and a key that was used for another message 409.
        """
        request = wire.SendMsg(
            agent=agent,
            content=content,
            sender=sender,
            cwd=cwd,
            guest=guest,
            tool_choice=tool_choice,
            mode=mode,
            unattended=unattended,
            origin=origin,
            key=key,
        )
        reply = await self._delivery.request("send", request, None)
        answer: wire.SendResponse = unwrap_reply("send", reply)
        return answer

    async def stream(
        self,
        agent: str,
        content: str,
        *,
        sender: str | None = None,
        cwd: str | None = None,
        guest: str | None = None,
        tool_choice: str | None = None,
        detach: bool | None = None,
        mode: str | None = None,
        unattended: bool | None = None,
        origin: str | None = None,
        key: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run one turn and yield its events. The last is a StreamEnd; look at its `error`.

        Closing the iterator, cancelling the task that reads it, or closing the client cancels the
        run, unless `detach` is set.

        When the connection is lost, the turn is followed on another one, and no event is repeated;
        without a `key` the client makes one. If the daemon died, you still get the stored part of
        the turn, and the `error` of the end says so: the turn is not run again. A `key` that was
        used before returns its run: the one in flight from its beginning, or the stored one, whose
        StreamStart has `stored` set. A key that was used for another message is ServerError 409.
        On a daemon without keys a lost connection is a ConnectionClosedError.
        """
        request = wire.StreamMsg(
            agent=agent,
            content=content,
            sender=sender,
            cwd=cwd,
            guest=guest,
            tool_choice=tool_choice,
            detach=detach,
            mode=mode,
            unattended=unattended,
            origin=origin,
            key=key,
        )
        async with aclosing(self._delivery.stream(request)) as events:
            async for message in events:
                event: Event = getattr(message, message.WhichOneof("event") or "")
                yield event

    def stream_events(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        """`stream` for a prepared request: yields the wire events, with their numbers.

        A key made by the client is put into `request`.
        """
        return self._delivery.stream(request)

    async def attach(
        self,
        agent: str,
        *,
        sender: str = "",
        run_id: str | None = None,
        key: str | None = None,
        after: int | None = None,
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Follow a run, by its id or key, or the one in flight.

        Yields pairs of an event's number and the event, from the first one or from `after` on.
        Events read from the log have the number 0, and a StreamStart restarts the stream.
        Closing the iterator stops nothing. Raises ServerError 404 when there is no such run.
        """
        request = wire.AttachMsg(agent=agent, sender=sender, run_id=run_id, key=key, after=after)
        message = wire.ClientMessage(attach=request)
        async with aclosing(self.request_stream(message)) as replies:
            async for reply in replies:
                stream: wire.StreamEvent = unwrap_reply("attach", reply)
                if (name := stream.WhichOneof("event")) is not None:  # None: from a newer daemon
                    event: Event = getattr(stream, name)
                    yield stream.number, event

    async def reply_to_ask(
        self,
        agent: str,
        content: str,
        *,
        sender: str = "",
        ask_id: str | None = None,
        as_owner: bool | None = None,
    ) -> None:
        """Answer a question of the conversation's run: the oldest pending one, or `ask_id`.

        Approvals for other people's runs need `ask_id` and `as_owner`.
        """
        request = wire.ReplyToAsk(
            agent=agent, sender=sender, content=content, ask_id=ask_id, as_owner=as_owner
        )
        await self._request_payload("reply_to_ask", request)

    async def steer_session(
        self, agent: str, content: str, *, sender: str = "", key: str | None = None
    ) -> None:
        """Send a message into the run in flight; the agent reads it at its next step.

        It is delivered once: when the connection is lost, it is resent with the same key, and
        without a `key` the client makes one. ServerError 404 means that nothing runs, and that the
        message was not delivered.
        """
        request = wire.SteerSessionMsg(agent=agent, sender=sender, content=content, key=key)
        reply = await self._delivery.request("steer_session", request, self._timeout)
        unwrap_reply("steer_session", reply)

    async def kill(
        self, agent: str, *, sender: str = "", run_id: str | None = None, key: str | None = None
    ) -> bool:
        """Cancel the run in flight, or only the run of that id or key, even while it is queued.

        Returns False when there is no such conversation.
        """
        try:
            request = wire.KillMsg(agent=agent, sender=sender, run_id=run_id, key=key)
            await self._request_payload("kill", request)
        except ServerError as error:
            if error.code == 404:
                return False
            raise
        return True

    async def compact(self, agent: str, *, sender: str = "", fresh: bool = False) -> str:
        """Compact the history into an archive and return its summary, which a model writes.

        With `fresh` there is no summary: the next turn begins with an empty history. No deadline:
        it may take minutes.
        """
        request = wire.CompactMsg(agent=agent, sender=sender, fresh=fresh or None)
        reply: wire.CompactResponse = await self._request_payload("compact", request, timed=False)
        return reply.summary

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def list_active_conversations(
        self, agent: str = "", sender: str = ""
    ) -> wire.ActiveConversationList:
        request = wire.ListActiveConversationsMsg(agent=agent, sender=sender)
        reply: wire.ActiveConversationList = await self._request_payload(
            "list_active_conversations", request
        )
        return reply

    async def list_conversations(self, agent: str = "", sender: str = "") -> wire.ConversationList:
        request = wire.ListConversationsMsg(agent=agent, sender=sender)
        reply: wire.ConversationList = await self._request_payload("list_conversations", request)
        return reply

    async def get_conversation_history(self, handle: str) -> wire.ConversationHistory:
        """`handle` is the `file_path` of a listed conversation."""
        request = wire.GetConversationHistoryMsg(file_path=handle)
        reply: wire.ConversationHistory = await self._request_payload(
            "get_conversation_history", request
        )
        return reply

    async def delete_conversation(self, handle: str) -> None:
        """`handle` is the `file_path` of a listed conversation."""
        await self._request_payload(
            "delete_conversation", wire.DeleteConversationMsg(file_path=handle)
        )

    async def list_messages(
        self,
        agent: str,
        *,
        sender: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
        with_runs: bool | None = None,
    ) -> wire.MessagePage:
        """Return a page of a conversation, archived messages included.

        With `with_runs` each message has its run, its key, and whether a tool call failed.
        """
        request = wire.ListMessagesMsg(
            agent=agent, sender=sender, offset=offset, limit=limit, with_runs=with_runs
        )
        reply: wire.MessagePage = await self._request_payload("list_messages", request)
        return reply

    async def list_records(
        self,
        agent: str,
        *,
        sender: str | None = None,
        position: int | None = None,
        log_id: str | None = None,
        limit: int | None = None,
    ) -> wire.RecordPage:
        """Return the records of a conversation's log from a position on: messages, ends of runs,
        compactions, changes of title and mode."""
        request = wire.ListRecordsMsg(
            agent=agent, sender=sender, position=position, log_id=log_id, limit=limit
        )
        reply: wire.RecordPage = await self._request_payload("list_records", request)
        return reply

    async def list_archives(self, agent: str, *, sender: str | None = None) -> wire.ArchiveList:
        request = wire.ListArchivesMsg(agent=agent, sender=sender)
        reply: wire.ArchiveList = await self._request_payload("list_archives", request)
        return reply

    async def set_title(self, agent: str, title: str, *, sender: str | None = None) -> None:
        """Set the title that people see."""
        await self._request_payload(
            "set_title", wire.SetTitleMsg(agent=agent, sender=sender, title=title)
        )

    async def set_mode(
        self, agent: str, mode: str | None = None, *, sender: str | None = None
    ) -> wire.ModeInfo:
        """Set the permission mode of a conversation. None only returns it, "" resets it."""
        request = wire.SetModeMsg(agent=agent, sender=sender, mode=mode)
        reply: wire.ModeInfo = await self._request_payload("set_mode", request)
        return reply

    async def explain_agent(
        self, agent: str, *, sender: str | None = None, mode: str | None = None
    ) -> wire.AgentPermissions:
        """Return what a sender may do with an agent, and why."""
        request = wire.ExplainAgentMsg(agent=agent, sender=sender, mode=mode)
        reply: wire.AgentPermissions = await self._request_payload("explain_agent", request)
        return reply

    async def search_sessions(
        self,
        query: str,
        *,
        agent: str | None = None,
        sender: str | None = None,
        limit: int | None = None,
        context_before: int | None = None,
        context_after: int | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> wire.SessionHitList:
        """Return the conversations with matching messages, best first. Times are RFC 3339."""
        request = wire.SearchSessionsMsg(
            query=query,
            agent=agent,
            sender=sender,
            limit=limit,
            context_before=context_before,
            context_after=context_after,
            since=since,
            until=until,
        )
        reply: wire.SessionHitList = await self._request_payload("search_sessions", request)
        return reply

    async def search_memory(
        self, agent: str, query: str, *, limit: int | None = None, sender: str | None = None
    ) -> wire.MemoryHitList:
        request = wire.SearchMemoryMsg(agent=agent, query=query, limit=limit, sender=sender)
        reply: wire.MemoryHitList = await self._request_payload("search_memory", request)
        return reply

    async def list_memory(
        self,
        agent: str,
        *,
        sender: str | None = None,
        name: str | None = None,
        after: int | None = None,
    ) -> wire.MemoryPage:
        """Return a page of an agent's memory, or the one entry called `name`."""
        request = wire.ListMemoryMsg(agent=agent, sender=sender, name=name, after=after)
        reply: wire.MemoryPage = await self._request_payload("list_memory", request)
        return reply

    async def replace_memory(
        self, agent: str, entries: Iterable[wire.MemoryEntry], *, sender: str | None = None
    ) -> None:
        """Replace the whole memory of an agent, or change nothing if that fails."""
        request = wire.ReplaceMemoryMsg(agent=agent, sender=sender, entries=entries)
        await self._request_payload("replace_memory", request)

    # ── Agents, skills, models ──────────────────────────────────────────────────────────────

    async def list_agents(self) -> wire.AgentList:
        reply: wire.AgentList = await self._request_payload("list_agents", wire.ListAgentsMsg())
        return reply

    async def get_agent(self, name: str) -> wire.AgentInfo:
        reply: wire.AgentInfo = await self._request_payload(
            "get_agent", wire.GetAgentMsg(name=name)
        )
        return reply

    async def create_agent(
        self, name: str, prompt: str, config: JsonConfig = "{}"
    ) -> wire.AgentInfo:
        """`config` holds the agent's settings, as JSON text or a mapping."""
        request = wire.CreateAgentMsg(name=name, config=to_json_text(config), prompt=prompt)
        reply: wire.AgentInfo = await self._request_payload("create_agent", request)
        return reply

    async def update_agent(
        self, name: str, config: JsonConfig, *, prompt: str = ""
    ) -> wire.AgentInfo:
        """An empty prompt keeps the current one."""
        request = wire.UpdateAgentMsg(name=name, config=to_json_text(config), prompt=prompt)
        reply: wire.AgentInfo = await self._request_payload("update_agent", request)
        return reply

    async def delete_agent(self, name: str) -> None:
        await self._request_payload("delete_agent", wire.DeleteAgentMsg(name=name))

    async def rename_agent(self, old_name: str, new_name: str) -> wire.AgentInfo:
        request = wire.RenameAgentMsg(old_name=old_name, new_name=new_name)
        reply: wire.AgentInfo = await self._request_payload("rename_agent", request)
        return reply

    async def list_skills(self) -> wire.SkillList:
        reply: wire.SkillList = await self._request_payload("list_skills", wire.ListSkillsMsg())
        return reply

    async def list_models(self) -> wire.ModelList:
        reply: wire.ModelList = await self._request_payload("list_models", wire.ListModelsMsg())
        return reply

    async def set_active_model(self, model: str) -> None:
        await self._request_payload("set_active_model", wire.SetActiveModelMsg(model=model))

    # ── MCP servers ─────────────────────────────────────────────────────────────────────────

    async def list_mcps(self, agent: str = "") -> wire.McpList:
        reply: wire.McpList = await self._request_payload(
            "list_mcps", wire.ListMcpsMsg(agent=agent)
        )
        return reply

    async def upsert_mcp(self, agent: str, config: JsonConfig) -> wire.McpInfo:
        """`config` holds one server's settings, as JSON text or a mapping."""
        request = wire.UpsertMcpMsg(agent=agent, config=to_json_text(config))
        reply: wire.McpInfo = await self._request_payload("upsert_mcp", request)
        return reply

    async def delete_mcp(self, agent: str, name: str) -> None:
        await self._request_payload("delete_mcp", wire.DeleteMcpMsg(agent=agent, name=name))

    def subscribe_mcp_events(self) -> AsyncGenerator[wire.McpEventMsg, None]:
        """Yield events of MCP servers as they happen, until the iterator is closed."""
        return self._stream_payloads("subscribe_mcp_events", wire.SubscribeMcpEventsMsg())

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def subscribe_events(
        self, *, agent: str | None = None, sender: str | None = None, all_kinds: bool = False
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        """Yield events of agents as they happen, until the iterator is closed.

        With `all_kinds`, also the questions agents ask people, starting with the pending ones.
        """
        request = wire.SubscribeEvents(agent=agent, sender=sender, all_kinds=all_kinds or None)
        return self._stream_payloads("subscribe_events", request)

    async def subscribe_event(
        self, source: str, target_agent: str, *, once: bool = False, sender: str | None = None
    ) -> wire.SubscriptionInfo:
        """Run `target_agent` each time `source` is published.

        The runs have the rights of `sender`, or of an unknown sender if it is not given.
        """
        request = wire.SubscribeEventMsg(
            source=source, target_agent=target_agent, once=once, sender=sender
        )
        reply: wire.SubscriptionInfo = await self._request_payload("subscribe_event", request)
        return reply

    async def unsubscribe_event(self, subscription: int) -> None:
        await self._request_payload("unsubscribe_event", wire.UnsubscribeEventMsg(id=subscription))

    async def list_subscriptions(self) -> wire.SubscriptionList:
        request = wire.ListSubscriptionsMsg()
        reply: wire.SubscriptionList = await self._request_payload("list_subscriptions", request)
        return reply

    async def publish_event(self, source: str, payload: str = "") -> None:
        await self._request_payload(
            "publish_event", wire.PublishEventMsg(source=source, payload=payload)
        )


def unwrap_reply(request: str, reply: wire.ServerMessage) -> Any:
    """Return the payload of the answer to `request`. Raises for any other answer."""
    kind = reply.WhichOneof("msg")
    if kind == "error":
        raise ServerError(reply.error.code, reply.error.message)
    route = ROUTES[request]
    if kind != route.reply:
        raise UnexpectedReplyError(f"{request} was answered with {kind}, not {route.reply}")
    if kind == "pong" and route.shape is ReplyShape.ONE:
        return None
    return getattr(reply, kind)


def to_json_text(config: JsonConfig) -> str:
    return config if isinstance(config, str) else json.dumps(config)
