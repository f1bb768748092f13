"""``pulsar-sidecar topics|namespaces get|set|remove-deduplication[-snapshot-interval]``, by pulsar-admin's names."""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import typer

from pulsar_sidecar.cli.command_groups import EXIT_CODES
from pulsar_sidecar.cli.connecting import Context, namespace_path, show_policy, show_result, topic_path
from pulsar_sidecar.cli.shared_groups import namespaces_app, topics_app
from pulsar_sidecar.features.deduplication.results import PolicyChange
from pulsar_sidecar.model.errors import InvalidInputError

_INTERVAL = "deduplicationSnapshotInterval"
_Applied = Annotated[
    bool,
    typer.Option(
        "--applied",
        "-ap",
        help="The policy in effect: the topic's, else its global one, the namespace's, the broker's.",
    ),
]
_Enable = Annotated[bool, typer.Option("--enable", "-e", help="Brokers deduplicate.")]
_Disable = Annotated[bool, typer.Option("--disable", "-d", help="Brokers do not deduplicate.")]
_Interval = Annotated[
    int,
    typer.Option(
        "--interval", "-i", min=0, metavar="SECONDS", help="Time between snapshots; 0 for no snapshots by time."
    ),
]


class _Level(NamedTuple):
    """Level on which policies are set; ``argument`` is typer's, ``example`` is the name in examples."""

    app: typer.Typer
    group: str
    example: str
    argument: Any
    path_of: Callable[[str], str]


_TOPICS = _Level(
    topics_app,
    "topics",
    "persistent://public/default/orders",
    typer.Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic"),
    topic_path,
)
_NAMESPACES = _Level(
    namespaces_app,
    "namespaces",
    "public/default",
    typer.Argument(metavar="NAMESPACE", help="tenant/namespace"),
    namespace_path,
)


def _add(level: _Level, policy: str, route: str, *, get_help: str, set_help: str, remove_help: str) -> None:
    argument, path_of, is_interval = level.argument, level.path_of, policy.endswith("interval")

    def get_of_topic(ctx: Context, place: str = argument, applied: _Applied = False) -> None:
        show_policy(ctx, f"{path_of(place)}/{route}", applied=applied)

    def get_of_namespace(ctx: Context, place: str = argument) -> None:
        show_policy(ctx, f"{path_of(place)}/{route}")

    def change(ctx: Context, place: str, method: str, value: bool | int | None = None) -> None:
        show_result(ctx, PolicyChange, f"{path_of(place)}/{route}", _lines, method=method, body=value)

    def switch(ctx: Context, place: str = argument, enable: _Enable = False, disable: _Disable = False) -> None:
        change(ctx, place, "POST", _chosen(enable, disable))

    def set_interval(ctx: Context, interval: _Interval, place: str = argument) -> None:
        change(ctx, place, "POST", interval)

    def remove(ctx: Context, place: str = argument) -> None:
        change(ctx, place, "DELETE")

    get = get_of_topic if level is _TOPICS else get_of_namespace
    shows_applied = level is _TOPICS and not is_interval
    for verb, command, text, more in (
        ("get", get, get_help, " -ap" if shows_applied else ""),
        ("set", set_interval if is_interval else switch, set_help, " -i 60" if is_interval else " --enable"),
        ("remove", remove, remove_help, ""),
    ):
        example = f"Example: pulsar-sidecar {level.group} {verb}-{policy} {level.example}{more}"
        level.app.command(f"{verb}-{policy}", epilog=EXIT_CODES, help=f"{text}\n\n{example}")(command)


_add(
    _TOPICS,
    "deduplication",
    "deduplicationEnabled",
    get_help="Print the topic's own policy, or null if it is not set; with --applied the policy in effect.",
    set_help="Switch deduplication on or off for a topic; prints the stored policy and the brokers' status.",
    remove_help="Remove the topic's own policy; its namespace's or its broker's applies again.",
)
_add(
    _TOPICS,
    "deduplication-snapshot-interval",
    _INTERVAL,
    get_help="Print the topic's own snapshot interval in seconds, or null if unset.",
    set_help="Set the snapshot interval of a topic.",
    remove_help="Remove the topic's own interval; its namespace's or its broker's applies again.",
)
_add(
    _NAMESPACES,
    "deduplication",
    "deduplication",
    get_help="Print the namespace's policy, or null if it is not set.",
    set_help="Switch deduplication on or off for a namespace; topics with a policy of their own keep it.",
    remove_help="Remove the namespace's policy; its brokers' configuration applies again.",
)
_add(
    _NAMESPACES,
    "deduplication-snapshot-interval",
    _INTERVAL,
    get_help="Print the namespace's snapshot interval in seconds, or null if unset.",
    set_help="Set the snapshot interval of a namespace; topics with an interval of their own keep it.",
    remove_help="Remove the namespace's interval; its brokers' configuration applies again.",
)


def _chosen(enable: bool, disable: bool) -> bool:
    if enable == disable:
        raise InvalidInputError("specify exactly one of --enable and --disable")
    return enable


def _lines(found: PolicyChange) -> Iterator[str]:
    values = found.values
    yield f"asked      {'remove it' if found.asked is None else json.dumps(found.asked)}"
    yield f"stored     {json.dumps(found.stored)}"
    levels = {
        "topic": values.topic,
        "topic (global)": values.topic_global,
        "namespace": values.namespace,
        "broker": values.broker,
    }
    texts = ", ".join(f"{level} {json.dumps(value)}" for level, value in levels.items())
    yield f"in effect  {json.dumps(values.applied)}, decided by the {values.decided_by} ({texts})"
    for number, each in enumerate(found.statuses):
        status = each.status or "not loaded: from its next topic load on"
        yield f"{'' if number else 'now':11}{each.topic}  {status}"
    yield from (f"note       {remark}" for remark in found.remarks)
