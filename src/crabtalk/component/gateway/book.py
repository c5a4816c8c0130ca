"""Book: what the records of a journal come to. Bounded, whatever people send."""

from collections import OrderedDict

from .entries import (
    Answering,
    AnyRecord,
    Asking,
    Came,
    ChatNote,
    Chose,
    Closed,
    Done,
    Filed,
    Formed,
    Item,
    LeftOut,
    Noticed,
    Sending,
    Sent,
    Unasked,
    Unsent,
    Whole,
)

# Updates that are known when they come again, and chats of which something is remembered.
MOST_SEEN = 20_000
MOST_CHATS = 10_000


class Book:
    def __init__(self, *, most_seen: int = MOST_SEEN, most_chats: int = MOST_CHATS) -> None:
        self._most_seen = most_seen
        self._most_chats = most_chats
        self.items: dict[str, Item] = {}  # what is not done, in the order it came
        self.seen: OrderedDict[str, None] = OrderedDict()
        self.chats: OrderedDict[str, ChatNote] = OrderedDict()
        self.waiting_characters = 0

    def is_known(self, update: str) -> bool:
        return update in self.items or update in self.seen

    def chat(self, chat: str) -> ChatNote:
        return self.chats.get(chat) or ChatNote()

    def whole(self) -> Whole:
        return Whole(list(self.items.values()), list(self.seen), dict(self.chats))

    def apply(self, record: AnyRecord) -> None:
        match record:
            case Came(update=update):
                if not self.is_known(update.id):
                    self.items[update.id] = Item(update=update)
                    self.waiting_characters += len(update.text)
            case LeftOut(id=key):
                self._see(key)
            case Chose(chat=chat, agent=agent):
                self._note(chat).agent = agent
                self._trim(chat)
            case Noticed(chat=chat, is_away=is_away):
                self._note(chat).is_told_away = is_away
                self._trim(chat)
            case Whole():
                self._restore(record)
            case _:
                item = self.items.get(record.id)
                if item is not None:
                    self._change(item, record)

    def _change(self, item: Item, record: AnyRecord) -> None:
        match record:
            case Asking(ask=ask):
                item.ask = ask
            case Unasked():
                item.ask = None
            case Answering(text=text):
                item.text = text
            case Sending():
                item.is_sending = True
            case Unsent():
                item.is_sending = False
            case Sent(message=message, is_marked=is_marked):
                item.is_sending, item.message, item.is_marked = False, message, is_marked
            case Closed(count=count):
                item.is_sending, item.message, item.is_marked = False, "", False
                item.closed = count
            case Formed(ask=ask_id, filled=filled):
                item.forms[ask_id] = filled
            case Filed(call=call, is_sent=is_sent):
                item.files[call] = is_sent
            case Done():
                self._finish(item)
            case _:
                pass

    def _finish(self, item: Item) -> None:
        del self.items[item.id]
        self.waiting_characters -= len(item.update.text)
        self._see(item.id)

    def _see(self, key: str) -> None:
        self.seen[key] = None
        if len(self.seen) > self._most_seen:
            self.seen.popitem(last=False)

    def _note(self, chat: str) -> ChatNote:
        return self.chats.setdefault(chat, ChatNote())

    def _trim(self, chat: str) -> None:
        """The chats that chose something longest ago are the ones that are forgotten."""
        self.chats.move_to_end(chat)
        if self.chats[chat] == ChatNote():
            del self.chats[chat]
        while len(self.chats) > self._most_chats:
            self.chats.popitem(last=False)

    def _restore(self, whole: Whole) -> None:
        self.items = {item.id: item for item in whole.items}
        self.seen = OrderedDict.fromkeys(whole.seen)
        self.chats = OrderedDict(whole.chats)
        self.waiting_characters = sum(len(item.update.text) for item in whole.items)
