"""``pulsar-sidecar deduplication show|check``: what brokers remember of producers (PIP-6), and whether they do."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_bytes, format_columns, format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import (
    Context,
    NamespaceArgument,
    Topic,
    namespace_path,
    show_answer,
    topic_path,
)
from pulsar_sidecar.cli.groups.waiting_messages import known_count, span

_NAME_WIDTH = 15
_CHECK_EXIT_CODES = (
    "Exit codes: 0 the duplicate was refused; 2 the message was stored twice; 1 the service answered with an error, or "
    "wrong usage; 3 no answer came; 4 the broker did not decide, or the check's topic is left behind."
)

app = new_group(
    "deduplication",
    "Show how well messages are deduplicated (PIP-6): whether, at what cost, and what is stored twice.\n\n"
    "To switch it on and off: topics set-deduplication, namespaces set-deduplication. To publish a file exactly "
    "once: publish.",
)


@app.command("show", epilog=EXIT_CODES, short_help="Show a topic's policy, snapshot, replay and retained ledgers.")
def show(
    ctx: Context,
    topic: Topic,
    replay: Annotated[
        bool, typer.Option("--replay", help="Rebuild the map: the snapshot, then every later entry from the bookies.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(min=1, max=100_000_000, help="Maximum number of entries that --replay reads of each partition."),
    ] = 500_000,
    producers: Annotated[int, typer.Option(min=0, help="Maximum number of producers listed.")] = 20,
    ask_broker: Annotated[
        bool, typer.Option("--ask-broker", help="Ask the broker that has the topic loaded for its status.")
    ] = False,
) -> None:
    """Show whether a topic is deduplicated, which level decides, its snapshot, what a load replays, what is retained.

    The service reads the metadata store and a few entries, and loads no topic. --replay shows the snapshot's map beside
    the one that a broker would have after its recovery. Exit code 4: not everything could be read, or the replayed map
    is incomplete.

    Example: pulsar-sidecar deduplication show persistent://public/default/orders --replay
    """
    parameters: dict[str, Any] = {"askBroker": "true" if ask_broker else None}
    if replay:
        parameters |= {"replay": "true", "limit": limit}
    places = ctx.obj.client().call("GET", f"{topic_path(topic)}/deduplication", parameters=parameters)
    silent = "; no broker has the topic loaded" if ask_broker else ""
    lines = ("\n".join(_lines(place, producers, silent)) for place in places)
    output.answer(places, ["\n\n".join(lines)], ctx.obj.format)
    if any(place["problem"] or not (place["replay"] or {"isWhole": True})["isWhole"] for place in places):
        output.info("not everything could be read; see the problems")
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=_CHECK_EXIT_CODES, short_help="Publish twice to a new topic, and show what its broker did.")
def check(ctx: Context, namespace: NamespaceArgument) -> None:
    """Publish twice under one sequence id to a new topic of a namespace, and show what the broker did.

    The topic has a new name (pulsar-sidecar-deduplication-check-...), and the service deletes it afterwards. No
    existing topic is touched.

    Example: pulsar-sidecar deduplication check public/default
    """
    answer = show_answer(ctx, "POST", f"{namespace_path(namespace)}/deduplication/check", lines=_check_lines)
    if answer["leftBehind"] or answer["outcome"] == "unknown":
        raise typer.Exit(ExitCode.NOT_ALL)
    if answer["outcome"] == "stored twice":
        raise typer.Exit(ExitCode.FINDINGS)


def _lines(place: Mapping[str, Any], most: int, silent: str) -> Iterator[str]:
    """One answer; ``silent`` is what it means if the broker reported no status."""
    yield place["topic"]
    status = f"; the broker reports: {place['status']}" if place["status"] else silent
    yield _line("deduplication", f"{place['decision']['reason']}{status}")
    snapshot, replayed, limits = place["snapshot"], place["replay"], place["limits"]
    if snapshot:
        yield _line("snapshot", _snapshot(snapshot))
        yield _line("limits", _limits(snapshot, limits))
        yield _line("since", _since(place))
        yield _line("holds back", _held(place))
    for remark in place["remarks"]:
        yield _line("remark", remark)
    if replayed:
        yield _line("replay", _replay(replayed))
        yield from (_line("problem", problem) for problem in replayed["problems"])
    if place["problem"]:
        yield _line("problem", place["problem"])
    if snapshot:
        yield from _table(snapshot, replayed, most)


def _line(name: str, text: str) -> str:
    return f"  {name:{_NAME_WIDTH}}{text}"


def _snapshot(snapshot: Mapping[str, Any]) -> str:
    producers, replicators = len(snapshot["producers"]), len(snapshot["replicators"])
    place = "the cursor's node"
    if snapshot["ledgerId"] is not None:
        place = f"entry {snapshot['entryId']} of ledger {snapshot['ledgerId']}"
    age = snapshot["ageMs"]
    published = "" if age is None else f"; messages there were published {span(age // 1000)} ago"
    besides = f" and {format_count(replicators, 'replicator')}" if replicators else ""
    return f"at {snapshot['position']}, {format_count(producers, 'producer')}{besides}, in {place}{published}"


def _limits(snapshot: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    names, size = snapshot["names"], snapshot["sizeBytes"]
    return (
        f"{names:,} of {known_count(limits['maxProducers'])} names; {format_bytes(size)}, of "
        f"{format_bytes(limits['maxEntryBytes'])} in an entry and {format_bytes(limits['maxNodeBytes'])} in a node of "
        "a stock ZooKeeper"
    )


def _since(place: Mapping[str, Any]) -> str:
    since = place["since"]
    if since is None:
        return "unknown"
    load = f"a load replays them in about {place['replaySeconds']:,.1f} s"
    if place["decision"]["enabled"] is False:
        load = "a load replays none of them"
    return f"{format_count(since['entries'], 'entry')}, {format_bytes(since['sizeBytes'])}: {load}"


def _held(place: Mapping[str, Any]) -> str:
    held, alone = place["held"], place["heldAlone"]
    if held is None or not held["ledgers"]:
        return "unknown" if held is None else "nothing"
    besides = "what other cursors hold is unknown"
    if alone is not None:
        besides = f"no other cursor holds {len(alone['ledgers']):,} of them, {format_bytes(alone['sizeBytes'])}"
    return f"{format_count(len(held['ledgers']), 'ledger')}, {format_bytes(held['sizeBytes'])}; {besides}"


def _replay(replayed: Mapping[str, Any]) -> str:
    end = f" up to {replayed['last']}" if replayed["last"] else ""
    verdict = (
        "a broker that loads and deduplicates the topic now gets this map"
        if replayed["isWhole"]
        else "the map is not certain"
    )
    return f"{format_count(replayed['entries'], 'entry')}{end}, {replayed['markers']:,} of them markers; {verdict}"


def _table(snapshot: Mapping[str, Any], replayed: Mapping[str, Any] | None, most: int) -> Iterator[str]:
    if replayed:
        rows = [
            {"producer": row["name"], "snapshot": _id(row["stored"]), "replayed": _id(row["replayed"])}
            for row in replayed["rows"]
        ]
    else:
        rows = [{"producer": row["name"], "snapshot": _id(row["lastSequenceId"])} for row in snapshot["producers"]]
        positions = [{"producer": row["producer"], "snapshot": row["position"]} for row in snapshot["replicators"]]
        rows += positions
    if rows[:most]:
        yield from (f"  {line}" for line in format_columns(rows[:most]).splitlines())
    if len(rows) > most:
        yield f"  and {len(rows) - most:,} more; show them with --producers or --output-format json"


def _id(number: int | None) -> str:
    return "-" if number is None else str(number)


def _check_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    policy = answer["policy"]
    yield f"{answer['namespace']}: {answer['outcome']}"
    yield f"  {answer['reason']}"
    switched = "on" if policy["applied"] else "off"
    yield f"  policy   deduplication is {switched}, decided by the {policy['decidedBy']}"
    yield f"  status   {answer['status'] or 'unknown'}"
    if answer["asConfigured"] is False:
        yield "  the broker did not follow the policy; search its log for the topic, then unload the namespace"
    elif not policy["applied"]:
        yield f"  switch it on with: pulsar-sidecar namespaces set-deduplication {answer['namespace']} --enable"
    if answer["leftBehind"]:
        yield f"  {answer['leftBehind']}"
