"""Replays in the Alloy model what the real worker wrote to its outcome topic: the model must allow every step.

The events of one ledger become a *trace*: in order, each judgement that was kept and each outcome that was kept, with
the consumer it came from and the versions it had read. What the outcome topic does not show (brokers, markers, looks,
deletions, acknowledgements, crashes) may happen in between as the model likes. A trace that no behaviour of the model
explains is an illegal step.

What is abstracted: versions count by their order; a run of retries counts as one, a longer run of anything else as two;
consumers whose work does not overlap are the same one; of a very long trace only the beginning is replayed. Copies in
tiered storage have no version and are not replayed.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.model.alloy import solve, theory

KNOWN = Path(__file__).with_name("known_traces.json")
"""Traces seen so far, all replayed by the tests of the model, and so legal."""

_JUDGED, _AGAIN, _DEAD = "Judges", "SentAgain", "SentToDeadLetters"
_VERDICTS = {
    ("deleted", "unreferenced"): "Deleted",
    ("kept", "already-gone"): "Gone",
    ("kept", "ledger-still-in-use"): "InUse",
}
_OTHER_VERDICTS = {
    "kept": "Refused", "rejected": "Refused", "retry": _AGAIN, "dead-letter": _DEAD, "set-aside": _DEAD,
}  # fmt: skip
_WITH_VERSIONS = frozenset({_JUDGED, "Deleted", "InUse"})
_STEPS = {_JUDGED: 3, "Deleted": 3}
"""Steps of the model that lead to an event, with the acknowledgement; 5 for any other."""

_MOST_EVENTS = 7
"""More would take minutes to replay."""

Version = int | None
Line = tuple[str, str, Mapping[str, Any]]
"""``step``, ``sidecar`` and entry of one line of the outcome topic."""


@dataclass(frozen=True, slots=True)
class Event:
    """A visible step.

    Attributes:
        what: ``Judges``, or the verdict whose outcome was kept.
        actor: number of the consumer.
        ledger: order of the version of the ledger's node among those that the trace names.
        owner: the same for the owner's node, or None when there was no such node.
        marked: the version that the record names, in the owner's order; None when it names none.
    """

    what: str
    actor: int
    ledger: Version = None
    owner: Version = None
    marked: Version = None

    def __str__(self) -> str:
        versions = "" if self.what not in _WITH_VERSIONS else f" ledger {self.ledger} owner {self.owner}"
        marked = "" if self.marked is None else f" marked {self.marked}"
        return f"{self.actor} {self.what}{versions}{marked}"


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one ledger, whether an operator brought it back in between, and whether more events followed."""

    events: tuple[Event, ...]
    brought_back: bool = False
    cut: bool = False

    def __str__(self) -> str:
        return "; ".join([*map(str, self.events), *(["brought back"] if self.brought_back else [])])


# --- from the outcome topic to traces --------------------------------------------------------------------------------


def traces(outcomes: Iterable[Line]) -> dict[int, Trace]:
    """Return the trace of each ledger, from the lines of the outcome topic in their order."""
    lines: dict[int, list[Line]] = defaultdict(list)
    back: set[int] = set()
    for step, sidecar, entry in outcomes:
        if step == "undeleted":
            back.add(entry["ledgerId"])
        elif step in ("judged", "settled") and entry.get("ledgerType") == "LEDGER":
            lines[entry["ledgerId"]].append((step, sidecar, entry))
    return {ledger_id: _trace(_events(found), brought_back=ledger_id in back) for ledger_id, found in lines.items()}


def _trace(events: Sequence[Event], *, brought_back: bool) -> Trace:
    kept = [
        event for index, event in enumerate(events) if index < 2 or not event == events[index - 1] == events[index - 2]
    ]
    return Trace(_ordered(kept[:_MOST_EVENTS]), brought_back, len(kept) > _MOST_EVENTS)


def _events(lines: Sequence[Line]) -> list[Event]:
    kept: list[Line] = []
    for line in lines:
        if not (_is_retry(line) and kept and _is_retry(kept[-1])):
            kept.append(line)
    actors = _actors([(sidecar, entry["messageId"]) for _, sidecar, entry in kept])
    return [_event(step, actor, entry) for (step, _, entry), actor in zip(kept, actors, strict=True)]


def _is_retry(line: Line) -> bool:
    step, _, entry = line
    return step == "settled" and entry["decision"] == "retry"


def _event(step: str, actor: int, entry: Mapping[str, Any]) -> Event:
    if step == "judged":
        what = _JUDGED
    else:
        what = _VERDICTS.get((entry["decision"], entry["reason"])) or _OTHER_VERDICTS[entry["decision"]]
    if what not in _WITH_VERSIONS:
        return Event(what, actor)
    own = ledger_path(LedgerId(entry["ledgerId"]), root="")
    versions = {path: version for path, version in entry["reads"].items() if path.startswith("/")}
    ledger = next((version for path, version in versions.items() if path.endswith(own)), None)
    owner = next((version for path, version in versions.items() if not path.endswith(own)), None)
    return Event(what, actor, ledger, owner, entry.get("markedVersion") if what == "InUse" else None)


def _actors(holders: Sequence[tuple[str, str]]) -> list[int]:
    """Return a consumer for each sidecar with a message; numbers are reused once their consumer is done."""
    last = {holder: index for index, holder in enumerate(holders)}
    numbers: dict[tuple[str, str], int] = {}
    busy: dict[int, tuple[str, str]] = {}
    for index, holder in enumerate(holders):
        if holder not in numbers:
            free = (number for number in range(len(holders)) if number not in busy or last[busy[number]] < index)
            numbers[holder] = next(free)
            busy[numbers[holder]] = holder
    return [numbers[holder] for holder in holders]


def _ordered(events: Sequence[Event]) -> tuple[Event, ...]:
    ledgers = _ranks(event.ledger for event in events)
    owners = _ranks(version for event in events for version in (event.owner, event.marked))
    return tuple(
        Event(event.what, event.actor, ledgers[event.ledger], owners[event.owner], owners[event.marked])
        for event in events
    )


def _ranks(versions: Iterable[Version]) -> dict[Version, Version]:
    known = sorted({version for version in versions if version is not None})
    return {None: None, **{version: rank for rank, version in enumerate(known)}}


# --- replaying -------------------------------------------------------------------------------------------------------

_REPLAY = """
sig Event {}
var one sig Cursor in Event {}
/** A retry may be missing on the outcome topic: its copy on the retry topic is what lasts. */
pred visible { Now.action = Judges or (Now.action = KeepsOutcome and Now.who.verdict in final) }
pred judged[c: Consumer] { Now.action = Judges and Now.who = c }
pred kept[c: Consumer, v: Verdict] { Now.action = KeepsOutcome and Now.who = c and c.verdict = v }
pred goesOn { Cursor != event/last and Cursor' = Cursor.next }
pred stays { Cursor' = Cursor and not visible }
"""


def illegal(found: Iterable[Trace]) -> set[Trace]:
    """Return the traces that no behaviour of the model explains, in one run of Alloy."""
    numbered = dict(enumerate(dict.fromkeys(found)))
    if not numbered:
        return set()
    opened = theory().replace(
        "open util/ordering[Version] as version\n",
        "open util/ordering[Version] as version\nopen util/ordering[Event] as event\n",
    )
    answers = solve([_command(number, trace) for number, trace in numbered.items()], model=opened + _REPLAY)
    return {trace for number, trace in numbered.items() if not answers[f"trace_{number}"].found}


def _command(number: int, trace: Trace) -> str:
    actors = max((event.actor for event in trace.events), default=0) + 1
    named = ", ".join(f"c{actor}" for actor in range(actors))
    matches = "\n".join(
        f"    Cursor = {_nth('event', index)} implies (stays or (goesOn and {_match(event)}))"
        for index, event in enumerate(trace.events)
    )
    undelete = "" if trace.brought_back else "  always Now.action != BringsBack\n"
    rest = "" if trace.cut else "  eventually always no Waiting\n"
    return f"""
run trace_{number} {{
  no Omitted
{undelete}{rest}  Cursor = event/first and eventually Cursor = event/last
  some disj {named}: Consumer | always {{
{matches}
    Cursor = event/last implies stays
  }}
}} for 1 but exactly {actors} Consumer, {_records(trace)} Record, {_messages(trace)} Message,
  {_versions(trace)} Version, {len(trace.events) + 1} Event, 1 Int, exactly {_steps(trace)} steps
"""


def _nth(order: str, index: int) -> str:
    return f"{order}/first" + f".({order}/next)" * index


def _match(event: Event) -> str:
    who = f"c{event.actor}"
    what = f"judged[{who}]" if event.what == _JUDGED else f"kept[{who}, {event.what}]"
    conditions = [what]
    if event.what in _WITH_VERSIONS:
        conditions.append(f"{who}.sawLedger = {_version(event.ledger)} and {who}.sawOwner = {_version(event.owner)}")
    if event.what == "InUse":
        named = f"{who}.of.marked = {_version(event.marked)}"
        conditions.append(f"{who}.of.kind != Cas" if event.marked is None else f"{who}.of.kind = Cas and {named}")
    return " and ".join(conditions)


def _version(rank: Version) -> str:
    return "none" if rank is None else _nth("version", rank)


def _records(trace: Trace) -> int:
    kinds = {(event.what == "Refused", event.marked) for event in trace.events if event.what in ("Refused", "InUse")}
    plain = any(event.what in ("Deleted", _JUDGED) for event in trace.events)
    return max(1, len(kinds) + plain)


def _messages(trace: Trace) -> int:
    ends = sum(event.what != _JUDGED for event in trace.events)
    return min(3, 1 + ends)


def _versions(trace: Trace) -> int:
    named = [version for event in trace.events for version in (event.ledger, event.owner, event.marked)]
    return max((version + 1 for version in named if version is not None), default=0) + 1


def _steps(trace: Trace) -> int:
    """Return enough steps for every event, changes in between, further copies, and rest at the end."""
    own = sum(_STEPS.get(event.what, 5) for event in trace.events)
    in_use = 4 * any(event.what == "InUse" and event.marked is None for event in trace.events)
    last_try = 3 * any(event.what == _DEAD for event in trace.events)
    repeated = sum(event.what not in (_JUDGED, _AGAIN) for event in trace.events) - 1
    return 4 + own + in_use + last_try + 2 * max(0, repeated) + 2 * _records(trace) + _versions(trace) - 2


# --- known traces ----------------------------------------------------------------------------------------------------


def known_traces() -> list[Trace]:
    """Return the traces of ``known_traces.json``."""
    return [trace_of(document) for document in json.loads(KNOWN.read_text())]


def trace_of(document: Mapping[str, Any]) -> Trace:
    """Return a trace from its `as_document`."""
    return Trace(tuple(Event(**event) for event in document["events"]), document["broughtBack"], document["cut"])


def as_document(trace: Trace) -> dict[str, Any]:
    """Return a trace as ``known_traces.json`` keeps it."""
    events = [
        {name: value for name in Event.__slots__ if (value := getattr(event, name)) is not None}
        for event in trace.events
    ]
    return {"events": events, "broughtBack": trace.brought_back, "cut": trace.cut}
