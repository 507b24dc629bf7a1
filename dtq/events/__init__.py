"""Lifecycle events for people and programs: what has happened, and what happens now (contract, section 13).

The scripts append every event to one stream, those of one script packed in one entry. Here it is read in two ways:

`EventHistory` pages through what the stream still holds. `newest(wanted, limit)` is its end, `after(since, wanted,
limit)` what came after an event; the page says whether something in between is gone (`gap`).

`EventReader` is the one live reader of a process, however many listen (`Client.events` is the one to use):

    with client.events.subscribe(EventFilter(queue="mail"), since=last_seen) as subscription:
        while not stopping.is_set():
            for item in subscription.get(timeout_s=1.0):   # [] when nothing came in time
                print(item.as_json())

An item is an `Event`, a `Gap` (events were missed: look at Redis again) or a `Dropped` (this subscriber was too slow
and lost so many). Every event comes once, in order. With `since` the subscription first replays from there. `take()` is
a `get` that does not wait. Whoever waits on something else than a subscription passes `on_ready`, which is called, from
the reader's thread, when there is something to take: it must be quick and must not raise. Take until nothing comes,
then wait for it.
A subscription holds at most `capacity` events. Beyond that it loses its oldest events that are not the end of a task;
when it holds nothing but ends, it is over, and `take` and `get` raise `SubscriptionEnded` (reason "overflow").
The reader's thread and connection come with the first subscriber and go a few seconds after the last.
"""

from dtq.events.history import EventHistory, HistoryPage
from dtq.events.model import EVENT_TYPES, TERMINAL_TYPES, Dropped, Event, EventFilter, EventId, Gap, Item
from dtq.events.reader import EventReader
from dtq.events.subscription import Subscription, SubscriptionEnded

__all__ = [
    "EVENT_TYPES",
    "TERMINAL_TYPES",
    "Dropped",
    "Event",
    "EventFilter",
    "EventHistory",
    "EventId",
    "EventReader",
    "Gap",
    "HistoryPage",
    "Item",
    "Subscription",
    "SubscriptionEnded",
]
