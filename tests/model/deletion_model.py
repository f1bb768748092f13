"""A ledger, its marker, and the consumers that judge it with the real `decide.decide`.

Three kinds of markers send the record before the list shrinks, as PIP-186 demands: one that shrinks the list by
compare-and-set at a version it names in the record, a plain one that knows only the PIP, and the sidecar's own
two-phase topic deletion, whose broker may go on with a request that the sidecar has no response to. Any of them may be
slow, stop, or die between any two steps. Consumers look early, late, twice, and die between judging, deleting and
acknowledging.

Beside these, two brokers that may own the topic's bundle: an owner links the ledger late, trims it, and loses the
bundle while the topic stays loaded. The consumer asks owners only, and reads again who they are (docs/decisions/0022).

Time is counted in ticks of five minutes: the settle window and the delay of a retry are two of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace
from pulsar_sidecar.features.ledger_deletion.record import Mark
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeletionPolicy,
    Facts,
    Keep,
    Postpone,
    Referenced,
    RetryLater,
    Unreferenced,
    Verdict,
    decide,
)
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import Guard
from pulsar_sidecar.model.topic_stats import TopicInternalStats

from tests.unit.ledger_deletion.cases import LEDGER_ID, NOW_MS, facts, record, stored, view

TICK_MS = 300_000
IN_USE_WAIT_TICKS = 2
RETRY_TICKS = 2
MOST_TRIES = 3
POLICY = DeletionPolicy(
    open_min_age_ms=3_600_000,
    unlinked_min_age_ms=3_600_000,
    in_use_wait_ms=IN_USE_WAIT_TICKS * TICK_MS,
    bookkeeper_exclusive=True,
)
GONE = NodeVersion(-1)

Decide = Callable[[Facts, DeletionPolicy], Verdict]


class Marker(Enum):
    """Origin of the ledger's deletion."""

    CAS = "compare-and-set at the marked version"
    PLAIN = "plain PIP-186"
    OPERATION = "two-phase topic deletion"
    OWNER = "a broker that trims, and may lose the bundle"


class Copy(Struct, frozen=True, order=True):
    """A message with the record.

    ``wait`` ticks until it is delivered; ``age`` ticks since the record was first seen in use, -1 for never.
    """

    wait: int = 0
    age: int = -1
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Explored variant; the defaults are the service's own rules.

    ``patience`` is how many ticks a plain marker, or a broker at work, may take: less than the settle window.
    Brokers' writes are ``versioned``, and owners are ``asked`` and ``reread``. ``late_stale_links``: a broker that has
    lost the bundle may still link what it has not linked before the ledger reached its minimum age.
    """

    marker: Marker
    decide: Decide = decide
    list_first: bool = False
    patience: int = IN_USE_WAIT_TICKS - 1
    versioned: bool = True
    asked: bool = True
    reread: bool = True
    late_stale_links: bool = False


class Loaded(Struct, frozen=True):
    """A broker's memory of the topic.

    Attributes:
        version: version of the node that its next write replaces.
        names: whether its next write names the ledger.
        reads: whether a reader has the ledger open.
        stale: whether the broker has lost the bundle since it loaded the topic; nobody asks it then.
    """

    version: int
    names: bool
    reads: bool
    stale: bool = False


Ownership = tuple[int | None, int]


class Question(Struct, frozen=True):
    """A consumer's question to owners.

    Attributes:
        ownership: the owner, and how often the bundle may still move, as they were read.
        left: brokers that are still to be asked.
        answer: the memory of the broker that has the topic loaded.
        repeated: whether the owner was read again, and all brokers are asked.
        loaded: whether the owner, at each reading of who it is, had the topic loaded.
    """

    ownership: Ownership
    left: tuple[int, ...]
    loaded: bool
    answer: Loaded | None = None
    repeated: bool = False


class State(Struct, frozen=True):
    """State of the ledger, its node, the marker, the broker, the messages and the consumer.

    Attributes:
        ledger: whether the ledger exists.
        node: version of the managed ledger's node, `GONE` without one.
        listed: whether the node references the ledger.
        marker: how far the marker is: ``idle``, ``marked``, ``sent``, ``sent again``, ``done``, ``dead``.
        marked: the version the marker has read.
        budget: ticks that the marker may still take; a broker's job counts its own in ``job``.
        operation: ``none``, ``running`` or ``ended``.
        job: ticks that a broker may still work on the topic's deletion, -1 when none does.
        asked: how often the broker was asked.
        copies: the messages that are waiting.
        judged: the copy a consumer is about to obey, and the guard's version.
        crashes: how often a consumer, or the sidecar that deletes the topic, may still die.
        changes: how often another process may still change the node.
        dead_letter: whether the record is on the dead-letter topic.
        broken: an invariant is violated.
        linked: whether the node has ever referenced the ledger.
        owner: broker that owns the bundle.
        brokers: each broker's memory of the topic, None where it is not loaded.
        moves: how often the bundle may still be lost.
        question: a consumer's query to owners.
        missed: a topic was loaded whenever its owner was read, is loaded now, and no broker was found to have it.
    """

    ledger: bool = True
    node: int = 0
    listed: bool = True
    marker: str = "idle"
    marked: int = 0
    budget: int = 0
    operation: str = "none"
    job: int = -1
    asked: int = 0
    copies: tuple[Copy, ...] = ()
    judged: tuple[Copy, int] | None = None
    crashes: int = 2
    changes: int = 1
    dead_letter: bool = False
    broken: bool = False
    linked: bool = True
    owner: int | None = None
    brokers: tuple[Loaded | None, ...] = (None, None)
    moves: int = 0
    question: Question | None = None
    missed: bool = False

    @property
    def ownership(self) -> Ownership:
        """Owner by the bundle's node, with the node's creation."""
        return self.owner, self.moves

    @property
    def owner_loaded(self) -> Loaded | None:
        """The owner's memory of the topic; None where it has not loaded it as the owner."""
        held = None if self.owner is None else self.brokers[self.owner]
        return None if held is None or held.stale else held

    @property
    def orphaned(self) -> bool:
        """The ledger exists, nothing references it, and no consumer will ever look again."""
        return self.ledger and not self.listed and not self.copies and not self.dead_letter

    def with_copy(self, *copies: Copy) -> "State":
        """Return the state with more messages, whose order means nothing."""
        return replace(self, copies=tuple(sorted((*self.copies, *copies))))

    def without(self, copy: Copy) -> "State":
        """Return the state with one message acknowledged."""
        left = list(self.copies)
        left.remove(copy)
        return replace(self, copies=tuple(left))

    def with_broker(self, broker: int, held: Loaded | None) -> "State":
        """Return the state with another memory of a broker."""
        return replace(self, brokers=(*self.brokers[:broker], held, *self.brokers[broker + 1 :]))


Steps = Iterator[tuple[str, State]]


def successors(state: State, rules: Rules) -> Steps:
    """Return everything that can happen next."""
    if state.broken:
        return
    if rules.marker is Marker.OWNER:
        yield from _bundle(state, rules)
        yield from _memories(state, rules)
        yield from _asking_consumer(state, rules)
        return
    if rules.marker is Marker.OPERATION:
        yield from _operation(state, rules)
        yield from _broker(state)
    else:
        yield from _marker(state, rules)
    yield from _others(state)
    yield from _consumer(state, rules)
    yield from _time(state, rules)


# --- markers ---------------------------------------------------------------------------------------------------------


def _marker(state: State, rules: Rules) -> Steps:
    if state.marker == "idle":
        yield "the marker reads the list", replace(state, marker="marked", marked=state.node)
    if state.marker == "marked" and not rules.list_first:
        sent = replace(state, marker="sent", budget=rules.patience).with_copy(Copy())
        yield "the record is sent", sent
        yield "the record is sent twice", sent.with_copy(Copy())
    if state.marker == "marked" and rules.list_first:
        yield "the list shrinks", replace(state, marker="shrunk", node=state.node + 1, listed=False)
    if state.marker == "shrunk":
        yield "the record is sent", replace(state, marker="done").with_copy(Copy())
    if state.marker == "sent":
        yield from _shrink(state, rules)
    if state.marker in ("marked", "sent", "shrunk"):
        yield "the marker dies", replace(state, marker="dead")


def _shrink(state: State, rules: Rules) -> Steps:
    fenced = rules.marker is Marker.CAS and state.node != state.marked
    if fenced:
        yield "the list has another version, the marker gives up", replace(state, marker="done")
    else:
        yield "the list shrinks", replace(state, marker="done", node=state.node + 1, listed=False)


def _operation(state: State, rules: Rules) -> Steps:
    if state.operation == "none":
        yield "the operation begins", replace(state, operation="running")
    if state.operation != "running":
        return
    if state.marker == "idle":
        yield "the record is sent", replace(state, marker="sent").with_copy(Copy())
        return
    if not state.listed:
        yield "the operation is done", replace(state, operation="ended")
        return
    if state.marker == "sent" and state.crashes:
        # Of a group's records the sidecar that dies keeps none; its successor goes through the topic again.
        again = replace(state, marker="sent again", crashes=state.crashes - 1)
        yield "the sidecar dies, its successor sends the record again", again.with_copy(Copy())
    if state.job < 0 and state.asked < 3:
        yield "the broker is asked", replace(state, job=rules.patience, asked=state.asked + 1)
    if state.asked < 3:
        yield "the broker refuses", replace(state, operation="ended", asked=state.asked + 1)
    if state.asked >= 3 and state.job < 0:
        yield "the broker deletes the topic at last", _unlinked(state)


def _broker(state: State) -> Steps:
    if state.job < 0:
        return
    if state.listed:
        yield "the broker removes the topic's node", _unlinked(state)
    elif state.ledger:
        yield "the broker deletes the ledger itself", replace(state, ledger=False)
    yield "the broker dies", replace(state, job=-1)


def _unlinked(state: State) -> State:
    return replace(state, node=GONE, listed=False)


def _others(state: State) -> Steps:
    if state.changes and state.node != GONE:
        yield "the topic gains a ledger", replace(state, node=state.node + 1, changes=state.changes - 1)


# --- brokers that may own the bundle ---------------------------------------------------------------------------------


def late_link(moves: int) -> State:
    """Return the start: the owner has made the ledger long ago, and has not linked it yet; there is a record of it."""
    held = Loaded(0, names=True, reads=True)
    return State(listed=False, linked=False, copies=(Copy(),), owner=0, brokers=(held, None), moves=moves)


def _bundle(state: State, rules: Rules) -> Steps:
    if state.owner is None:
        for broker in range(len(state.brokers)):
            yield f"broker {broker} takes the bundle", replace(state, owner=broker)
    elif state.moves:
        held = state.brokers[state.owner]
        if held is not None:
            names = held.names and (state.linked or rules.late_stale_links)
            held = replace(held, stale=True, names=names)
        lost = state.with_broker(state.owner, held)
        yield "the owner loses the bundle", replace(lost, owner=None, moves=state.moves - 1)


def _memories(state: State, rules: Rules) -> Steps:
    for broker, held in enumerate(state.brokers):
        if held is None:
            # The weakest case: cursors' nodes are not written when a topic is loaded, the managed ledger's is.
            if broker == state.owner:
                loaded = Loaded(state.node, names=state.listed, reads=state.listed)
                yield f"broker {broker} loads the topic", state.with_broker(broker, loaded)
            continue
        if held.stale:
            yield f"broker {broker} closes the topic", state.with_broker(broker, None)
        if held.reads and not held.names:
            moved = state.with_broker(broker, replace(held, reads=False))
            yield f"the reader on broker {broker} has read the ledger", moved
        if held.names and (held.version == state.node or not rules.versioned):
            yield from _write(state, broker, held)


def _write(state: State, broker: int, held: Loaded) -> Steps:
    written = replace(state, node=state.node + 1, linked=True)
    name = f"{'stale ' if held.stale else ''}broker {broker}"
    if state.listed:
        trimmed = replace(held, version=written.node, names=False)
        yield f"{name} trims the ledger", replace(written.with_broker(broker, trimmed), listed=False)
    else:
        linked = written.with_broker(broker, replace(held, version=written.node))
        yield f"{name} links the ledger", replace(linked, listed=True, broken=not state.ledger)


def _asking_consumer(state: State, rules: Rules) -> Steps:
    question = state.question
    if state.judged is not None:
        yield from _carry_out(state, *state.judged)
    elif question is None:
        everyone = tuple(range(len(state.brokers)))
        asked = everyone if state.owner is None else (state.owner,)
        begun = Question(state.ownership, asked if rules.asked else (), state.owner_loaded is not None)
        if state.copies:
            yield "a consumer reads the owner", replace(state, question=begun)
    elif question.left:
        broker, *left = question.left
        answer = state.owner_loaded if broker == state.owner else None
        told = replace(question, left=tuple(left), answer=answer or question.answer)
        yield f"broker {broker} is asked", replace(state, question=told)
    elif question.answer is None and rules.reread and not question.repeated and state.ownership != question.ownership:
        loaded = question.loaded and state.owner_loaded is not None
        again = replace(question, left=tuple(range(len(state.brokers))), loaded=loaded, repeated=True)
        yield "the owner has changed, all brokers are asked", replace(state, question=again)
    else:
        yield from _look_with_answer(state, question, rules)


def _look_with_answer(state: State, question: Question, rules: Rules) -> Steps:
    missed = rules.asked and question.loaded and question.answer is None and state.owner_loaded is not None
    looking = replace(state, question=None, missed=missed)
    (copy,) = state.copies
    answer = question.answer
    names = () if answer is None or not answer.names else (LEDGER_ID,)
    reads = () if answer is None or not answer.reads else (LEDGER_ID,)
    owner = None if answer is None else view(ledgers=dict.fromkeys(names, 1), ledgers_being_read=frozenset(reads))
    verdict = rules.decide(_facts(state, copy, rules.marker, owner), POLICY)
    if isinstance(verdict, Delete):
        (guard,) = verdict.guards
        yield "a consumer judges: delete", replace(looking, judged=(copy, guard.version))
    else:
        # The record stays, so that it is looked at again, however late.
        yield "a consumer judges: not now", looking


# --- consumers -------------------------------------------------------------------------------------------------------


def _consumer(state: State, rules: Rules) -> Steps:
    if state.judged is not None:
        yield from _carry_out(state, *state.judged)
        return
    for copy in dict.fromkeys(state.copies):
        if copy.wait == 0:
            yield from _look(state, copy, rules)


def _look(state: State, copy: Copy, rules: Rules) -> Steps:
    verdict = rules.decide(_facts(state, copy, rules.marker), POLICY)
    match verdict:
        case Delete():
            guard = verdict.guards[0].version if verdict.guards else GONE
            yield "a consumer judges: delete", replace(state, judged=(copy, guard))
        case Keep(reason, _):
            yield f"a consumer judges: {reason.value}, final", state.without(copy)
        case RetryLater(reason, _, delay_ms):
            yield from _send_again(state, copy, f"a consumer judges: {reason.value}, retry", delay_ms)
        case Postpone():
            yield "a consumer judges: later", state
        case _:
            raise AssertionError(verdict)


def _send_again(state: State, copy: Copy, label: str, delay_ms: int | None) -> Steps:
    if copy.tries == MOST_TRIES:
        yield f"{label}, dead letter", replace(state.without(copy), dead_letter=True)
        return
    wait = RETRY_TICKS if delay_ms is None else -(-delay_ms // TICK_MS)
    age = max(copy.age, 0) if state.listed else copy.age
    again = state.with_copy(Copy(wait, age, copy.tries + 1))
    yield label, again.without(copy)
    if state.crashes:
        yield f"{label}, and dies before it acknowledges", replace(again, crashes=state.crashes - 1)


def _carry_out(state: State, copy: Copy, guard: int) -> Steps:
    if state.crashes:
        yield "the consumer dies", replace(state, judged=None, crashes=state.crashes - 1)
    if not state.ledger or (guard != GONE and state.node != guard):
        yield "gone or changed: to be judged again", replace(state, judged=None)
        return
    deleted = replace(state, ledger=False, judged=None, broken=state.listed)
    yield "the ledger is deleted", deleted.without(copy)
    if state.crashes:
        yield "the ledger is deleted, and the consumer dies", replace(deleted, crashes=state.crashes - 1)


def _facts(state: State, copy: Copy, marker: Marker, owner: TopicInternalStats | None = None) -> Facts:
    mark = {
        Marker.CAS: Mark(marked_version=NodeVersion(state.marked)),
        Marker.PLAIN: Mark(),
        Marker.OPERATION: Mark(operation_id=OperationId("op")),
        Marker.OWNER: Mark(),
    }[marker]
    guard = Guard("/managed-ledgers/topic", NodeVersion(state.node))
    nothing = Unreferenced(() if state.node == GONE else (guard,))
    return facts(
        record().marked(mark),
        ledger=stored() if state.ledger else None,
        references=Referenced(guard) if state.listed else nothing,
        operation_running=state.operation == "running",
        in_use_since_ms=None if copy.age < 0 else NOW_MS - copy.age * TICK_MS,
        owner=owner,
    )


# --- time ------------------------------------------------------------------------------------------------------------


def _time(state: State, rules: Rules) -> Steps:
    copies = tuple(sorted(_older(copy) for copy in state.copies))
    out_of_time = rules.marker is Marker.PLAIN and state.marker == "sent" and state.budget == 0
    yield (
        "five minutes pass",
        replace(
            state,
            copies=copies,
            marker="dead" if out_of_time else state.marker,
            budget=max(0, state.budget - 1),
            job=max(-1, state.job - 1),
        ),
    )


def _older(copy: Copy) -> Copy:
    age = copy.age if copy.age < 0 else min(copy.age + 1, IN_USE_WAIT_TICKS)
    return Copy(max(0, copy.wait - 1), age, copy.tries)
