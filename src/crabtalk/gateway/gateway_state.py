"""The state that the records of a gateway journal add up to. Its size is bounded."""

from collections import OrderedDict

from .journal_records import (
    AgentChosen,
    AnswerPrepared,
    AnyGatewayRecord,
    AvailabilityNotified,
    ChatState,
    FileSendUpdated,
    FormUpdated,
    GatewaySnapshot,
    PendingUpdate,
    RequestNotSent,
    RequestStarted,
    SendCompleted,
    SendFailed,
    SendStarted,
    TextDelivered,
    UpdateHandled,
    UpdateReceived,
    UpdateSkipped,
)

# The update ids that are recognised when they come again, and the chats whose state is stored.
MAX_SEEN = 20_000
MAX_CHATS = 10_000


class GatewayState:
    def __init__(self, *, max_seen: int = MAX_SEEN, max_chats: int = MAX_CHATS) -> None:
        self._max_seen = max_seen
        self._max_chats = max_chats
        self.pending: dict[str, PendingUpdate] = {}  # not handled yet, in order of arrival
        self.seen_ids: OrderedDict[str, None] = OrderedDict()
        self.chats: OrderedDict[str, ChatState] = OrderedDict()
        self.pending_characters = 0

    def is_known(self, update: str) -> bool:
        return update in self.pending or update in self.seen_ids

    def get_chat(self, chat: str) -> ChatState:
        return self.chats.get(chat) or ChatState()

    def snapshot(self) -> GatewaySnapshot:
        return GatewaySnapshot(list(self.pending.values()), list(self.seen_ids), dict(self.chats))

    def apply(self, record: AnyGatewayRecord) -> None:
        match record:
            case UpdateReceived(update=update):
                if not self.is_known(update.id):
                    self.pending[update.id] = PendingUpdate(update=update)
                    self.pending_characters += len(update.text)
            case UpdateSkipped(id=key):
                self._remember_id(key)
            case AgentChosen(chat=chat, agent=agent):
                self._ensure_chat(chat).agent = agent
                self._trim_chats(chat)
            case AvailabilityNotified(chat=chat, is_away=is_away):
                self._ensure_chat(chat).is_told_away = is_away
                self._trim_chats(chat)
            case GatewaySnapshot():
                self._restore(record)
            case _:
                item = self.pending.get(record.id)
                if item is not None:
                    self._update_pending(item, record)

    def _update_pending(self, item: PendingUpdate, record: AnyGatewayRecord) -> None:
        match record:
            case RequestStarted(ask=ask):
                item.ask = ask
            case RequestNotSent():
                item.ask = None
            case AnswerPrepared(text=text):
                item.text = text
            case SendStarted():
                item.is_sending = True
            case SendFailed():
                item.is_sending = False
            case SendCompleted(message=message, is_marked=is_marked):
                item.is_sending, item.message, item.is_marked = False, message, is_marked
            case TextDelivered(count=count):
                item.is_sending, item.message, item.is_marked = False, "", False
                item.closed = count
            case FormUpdated(ask=ask_id, filled=filled):
                item.forms[ask_id] = filled
            case FileSendUpdated(call=call, is_sent=is_sent):
                item.files[call] = is_sent
            case UpdateHandled():
                self._complete_update(item)
            case _:
                pass

    def _complete_update(self, item: PendingUpdate) -> None:
        del self.pending[item.id]
        self.pending_characters -= len(item.update.text)
        self._remember_id(item.id)

    def _remember_id(self, key: str) -> None:
        self.seen_ids[key] = None
        if len(self.seen_ids) > self._max_seen:
            self.seen_ids.popitem(last=False)

    def _ensure_chat(self, chat: str) -> ChatState:
        return self.chats.setdefault(chat, ChatState())

    def _trim_chats(self, chat: str) -> None:
        """Forget the chats whose last change is longest ago."""
        self.chats.move_to_end(chat)
        if self.chats[chat] == ChatState():
            del self.chats[chat]
        while len(self.chats) > self._max_chats:
            self.chats.popitem(last=False)

    def _restore(self, snapshot: GatewaySnapshot) -> None:
        self.pending = {item.id: item for item in snapshot.items}
        self.seen_ids = OrderedDict.fromkeys(snapshot.seen)
        self.chats = OrderedDict(snapshot.chats)
        self.pending_characters = sum(len(item.update.text) for item in snapshot.items)
