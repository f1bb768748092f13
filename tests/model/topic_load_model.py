"""The deletion of an unloaded topic, beside whoever opens it: what its waits are for (docs/decisions/0024).

A broker that opens a topic reads its list, creates a ledger, and links it by compare-and-set. For a `DELETE` it fences
a topic that it has loaded, and deletes what its list has by then; of any other topic it reads the list, deletes that,
and removes the node, whatever has been linked since. A broker that becomes the bundle's owner opens topics unasked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum


class Load(Enum):
    """Topics that are loaded before their deletion."""

    ALL = "all"
    OF_UNOWNED_BUNDLES = "those of bundles without an owner"
    NONE = "none"


class Note(Enum):
    """Time at which the note of the deletion's end is stored."""

    BEFORE_END = "before the operation's end"
    BEFORE_RESPONSE = "after the operation's end, before the response"
    BESIDE_END = "beside the operation's end, before the response"
    AFTER_RESPONSE = "after the response"


@dataclass(frozen=True, slots=True)
class Rules:
    """Explored variant; the defaults are the service's own rules."""

    load: Load = Load.ALL
    note: Note = Note.BEFORE_RESPONSE


@dataclass(frozen=True, slots=True)
class State:
    """State of the bundle, the topic, the ledger that opening it creates, and the sidecar.

    Attributes:
        owned: whether a broker owns the bundle.
        topic: ``closed``, ``read``, ``created``, ``open``, ``fenced`` or ``failed``, as the owner has it.
        node: whether the managed ledger's node exists.
        listed: whether it references the ledger.
        ledger: whether the ledger exists.
        lost: whether a killed broker has left a ledger that it had not linked.
        recorded: whether a record of it is stored, by which the second phase deletes it.
        sidecar: last step of the deletion.
        found: whether the broker's deletion found the ledger in the list; None before it has read that.
        ended: whether the operation's node is gone, so that no other sidecar continues.
        noted: whether the note of the end is stored.
        answered: whether the caller has a response.
        connections: how often a client may still connect.
        kills: how often a broker may still be killed.
        crashes: how often the sidecar may still die.
    """

    owned: bool = False
    topic: str = "closed"
    node: bool = True
    listed: bool = False
    ledger: bool = False
    lost: bool = False
    recorded: bool = False
    sidecar: str = "begins"
    found: bool | None = None
    ended: bool = False
    noted: bool = False
    answered: bool = False
    connections: int = 0
    kills: int = 0
    crashes: int = 0

    @property
    def orphaned(self) -> bool:
        """The topic is gone, and a ledger exists that no record names and no broker will link or delete."""
        left = self.ledger and not self.recorded and self.topic in ("closed", "open", "failed")
        return not self.node and (self.lost or left)

    @property
    def unnoted(self) -> bool:
        """The caller knows that the topic is deleted, and nobody will ever store by whom."""
        return self.answered and not self.noted and self.sidecar == "dead"


Steps = Iterator[tuple[str, State]]


def successors(state: State, rules: Rules) -> Steps:
    """Return everything that can happen next."""
    yield from _opening(state)
    yield from _deletion(state, rules)
    yield from _end(state, rules)


def _opening(state: State) -> Steps:
    if state.topic == "closed" and state.node:
        read = replace(state, owned=True, topic="read")
        if state.connections:
            yield "a client connects, the owner opens the topic", replace(read, connections=state.connections - 1)
        if state.sidecar == "asks" and not state.owned:
            yield "a broker becomes the owner for the request, and opens the topic", read
    elif state.topic == "read":
        yield "the broker creates a ledger", replace(state, topic="created", ledger=True)
    elif state.topic == "created" and state.node:
        yield "the broker links the ledger", replace(state, topic="open", listed=True)
    elif state.topic == "created":
        yield "the broker finds no node to link the ledger in", replace(state, topic="failed")
    if state.kills and state.topic in ("read", "created", "open"):
        lost = state.lost or state.topic == "created"
        again = "begins" if state.sidecar == "waits" else state.sidecar
        killed = replace(state, owned=False, topic="closed", found=None, lost=lost, sidecar=again)
        yield "the broker is killed", replace(killed, kills=state.kills - 1)


def _deletion(state: State, rules: Rules) -> Steps:
    if state.sidecar == "begins":
        loads = rules.load is Load.ALL or (rules.load is Load.OF_UNOWNED_BUNDLES and not state.owned)
        recorded = replace(state, recorded=state.listed)
        yield "the sidecar records what is listed", replace(recorded, sidecar="loads" if loads else "asks")
    elif state.sidecar == "loads" and state.topic == "closed":
        yield "the sidecar has the topic opened", replace(state, owned=True, topic="read")
    elif state.sidecar == "loads" and state.topic == "open":
        yield "the sidecar records what is listed now", replace(state, recorded=state.listed, sidecar="asks")
    elif state.sidecar == "asks" and state.topic == "open":
        deleted = replace(state, topic="fenced", node=False, listed=False, ledger=False)
        yield "the owner fences and deletes the topic", replace(deleted, sidecar="deleted")
    elif state.sidecar == "asks" and state.owned:
        yield "the owner reads the list to delete it", replace(state, found=state.listed, sidecar="waits")
    elif state.sidecar == "waits":
        deleted = replace(state, node=False, listed=False, ledger=state.ledger and not state.found)
        yield "the broker deletes what it read, and the node", replace(deleted, sidecar="deleted")


def _end(state: State, rules: Rules) -> Steps:
    if state.sidecar != "deleted":
        return
    if state.crashes:
        yield "the sidecar dies", replace(state, sidecar="dead", crashes=state.crashes - 1)
    if not state.ended and (state.noted or rules.note is not Note.BEFORE_END):
        yield "the operation ends", replace(state, ended=True)
    may_note = {
        Note.BEFORE_END: True,
        Note.BEFORE_RESPONSE: state.ended,
        Note.BESIDE_END: True,
        Note.AFTER_RESPONSE: state.answered,
    }[rules.note]
    if may_note and not state.noted:
        yield "the note is stored", replace(state, noted=True)
    if state.ended and not state.answered and (state.noted or rules.note is Note.AFTER_RESPONSE):
        yield "the caller gets a response", replace(state, answered=True)
