"""The deletion of a topic, beside whoever opens it: what its waits are for (docs/decisions/0024).

A broker that opens a topic reads its list, creates a ledger, and links it by compare-and-set. For a `DELETE` it fences
a topic that it has loaded or is loading, and deletes what its list has by then. Of a closed topic it reads the list,
deletes that, and removes the node, whatever was linked since. A broker that becomes the bundle's owner for any request
opens the bundle's topics unasked.
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
    """State of the bundle, the topic, the ledgers that opening it creates, and the sidecar.

    Attributes:
        owned: whether a broker owns the bundle.
        unasked: whether the owner has still to open the bundle's topics.
        topic: ``closed``, ``read``, ``created``, ``open``, ``fenced`` or ``failed``, as the owner has it.
        node: whether the managed ledger's node exists.
        unrecorded: ledgers that the list has and of which no record is stored.
        found: those of them that the broker has read, to delete them.
        lost: whether a ledger is left that no list and no record has.
        sidecar: last step of the deletion.
        ended: whether the operation's node is gone, so that no other sidecar continues.
        noted: whether the note of the end is stored.
        refused: whether the outcome topic has refused it.
        answered: whether the caller has a response.
        connections: how often a client may still connect.
        unloads: how often the owner may still unload the bundle.
        kills: how often the owner may still be killed.
        failures: how often a load or a note may still fail.
        crashes: how often the sidecar may still die.
    """

    owned: bool = False
    unasked: bool = False
    topic: str = "closed"
    node: bool = True
    unrecorded: int = 0
    found: int = 0
    lost: bool = False
    sidecar: str = "begins"
    ended: bool = False
    noted: bool = False
    refused: bool = False
    answered: bool = False
    connections: int = 0
    unloads: int = 0
    kills: int = 0
    failures: int = 0
    crashes: int = 0

    @property
    def unnoted(self) -> bool:
        """Nobody will ever store by whom the topic was deleted, although its outcome topic would have."""
        return self.ended and not self.noted and not self.refused and self.sidecar == "dead"


Steps = Iterator[tuple[str, State]]


def successors(state: State, rules: Rules) -> Steps:
    """Return everything that can happen next."""
    yield from _opening(state)
    yield from _owner(state)
    yield from _deletion(state, rules)
    yield from _end(state, rules)


def _opening(state: State) -> Steps:
    if state.topic == "closed" and state.node and state.owned:
        if state.unasked:
            yield "the owner opens the topic unasked", replace(state, topic="read", unasked=False)
        if state.connections:
            opened = replace(state, topic="read", connections=state.connections - 1)
            yield "a client connects, the owner opens the topic", opened
        if state.sidecar == "loads":
            yield "the owner opens the topic for the sidecar", replace(state, topic="read")
    elif state.topic == "read":
        yield "the owner creates a ledger", replace(state, topic="created")
    elif state.topic == "created" and state.node:
        yield "the owner links the ledger", replace(state, topic="open", unrecorded=state.unrecorded + 1)
    elif state.topic == "created":
        yield "the owner finds no node to link the ledger in", replace(state, topic="failed", lost=True)


def _owner(state: State) -> Steps:
    if not state.owned and state.node and (state.connections or state.sidecar in ("loads", "asks")):
        yield "a broker becomes the owner", replace(state, owned=True, unasked=True)
    gone = replace(state, owned=False, unasked=False, topic="closed", found=0)
    if state.owned and state.unloads and state.topic in ("closed", "open") and state.sidecar != "waits":
        yield "the owner unloads the bundle", replace(gone, unloads=state.unloads - 1)
    if state.owned and state.kills and state.node:
        again = "begins" if state.sidecar == "waits" else state.sidecar
        killed = replace(gone, sidecar=again, lost=state.lost or state.topic == "created")
        yield "the owner is killed", replace(killed, kills=state.kills - 1)


def _deletion(state: State, rules: Rules) -> Steps:
    if state.sidecar == "begins":
        loads = rules.load is Load.ALL or (rules.load is Load.OF_UNOWNED_BUNDLES and not state.owned)
        recorded = replace(state, unrecorded=0, sidecar="loads" if loads else "asks")
        yield "the sidecar records what is listed", recorded
    elif state.sidecar == "loads":
        if state.topic == "open" and state.unrecorded:
            yield "the sidecar records what is listed now", replace(state, unrecorded=0)
        elif state.topic == "open":
            yield "the sidecar finds nothing new", replace(state, sidecar="asks")
        elif state.failures:
            yield "the load fails", replace(state, sidecar="asks", failures=state.failures - 1)
    elif state.sidecar == "asks" and state.topic == "open":
        yield "the owner fences and deletes the topic", _deleted(state, state.unrecorded, "fenced")
    elif state.sidecar == "asks" and state.topic == "closed" and state.owned:
        yield "the owner reads the list to delete it", replace(state, found=state.unrecorded, sidecar="waits")
    elif state.sidecar == "waits":
        yield "the owner deletes what it read, and the node", _deleted(state, state.found, state.topic)


def _deleted(state: State, found: int, topic: str) -> State:
    left = state.lost or state.unrecorded > found
    return replace(state, node=False, unrecorded=0, found=0, topic=topic, lost=left, sidecar="deleted")


def _end(state: State, rules: Rules) -> Steps:
    if state.sidecar != "deleted":
        return
    if state.crashes:
        yield "the sidecar dies", replace(state, sidecar="dead", crashes=state.crashes - 1)
    has_tried = state.noted or state.refused
    if not state.ended and (has_tried or rules.note is not Note.BEFORE_END):
        yield "the operation ends", replace(state, ended=True)
    may_note = {
        Note.BEFORE_END: True,
        Note.BEFORE_RESPONSE: state.ended,
        Note.BESIDE_END: True,
        Note.AFTER_RESPONSE: state.answered,
    }[rules.note]
    if may_note and not has_tried:
        yield "the note is stored", replace(state, noted=True)
        if state.failures:
            yield "the outcome topic refuses the note", replace(state, refused=True, failures=state.failures - 1)
    if state.ended and not state.answered and (has_tried or rules.note is Note.AFTER_RESPONSE):
        yield "the caller gets a response", replace(state, answered=True)
