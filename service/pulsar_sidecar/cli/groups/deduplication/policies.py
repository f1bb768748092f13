"""``pulsar-sidecar topics|namespaces get|set|remove-deduplication[-snapshot-interval]``, by pulsar-admin's names."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from pulsar_sidecar.cli.command_groups import EXIT_CODES
from pulsar_sidecar.cli.connecting import Context, namespace_path, show_answer, topic_path
from pulsar_sidecar.cli.groups.delayed_messages import app as topics_app
from pulsar_sidecar.cli.groups.topics import namespaces_app, show_policy
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
    """Where policies are set; ``argument`` is typer's, ``example`` what the examples name."""

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
    """The three commands of a policy on a level."""
    argument, path_of, is_interval = level.argument, level.path_of, policy.endswith("interval")

    def get_of_topic(ctx: Context, place: str = argument, applied: _Applied = False) -> None:
        show_policy(ctx, f"{path_of(place)}/{route}", applied=applied)

    def get_of_namespace(ctx: Context, place: str = argument) -> None:
        show_policy(ctx, f"{path_of(place)}/{route}")

    def switch(ctx: Context, place: str = argument, enable: _Enable = False, disable: _Disable = False) -> None:
        show_answer(ctx, "POST", f"{path_of(place)}/{route}", _chosen(enable, disable), lines=_lines)

    def set_interval(ctx: Context, interval: _Interval, place: str = argument) -> None:
        show_answer(ctx, "POST", f"{path_of(place)}/{route}", interval, lines=_lines)

    def remove(ctx: Context, place: str = argument) -> None:
        show_answer(ctx, "DELETE", f"{path_of(place)}/{route}", lines=_lines)

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
    set_help="Switch deduplication on or off for a topic; prints what the broker stored and what it does now.",
    remove_help="Remove the topic's own policy; its namespace's or its broker's counts again.",
)
_add(
    _TOPICS,
    "deduplication-snapshot-interval",
    _INTERVAL,
    get_help="Print the snapshot interval of the topic: of its own policy, in seconds, or null if it is not set.",
    set_help="Set the seconds after which brokers take a snapshot of the topic.",
    remove_help="Remove the topic's own interval; its namespace's or its broker's counts again.",
)
_add(
    _NAMESPACES,
    "deduplication",
    "deduplication",
    get_help="Print the namespace's policy, or null if it is not set.",
    set_help="Switch deduplication on or off for a namespace; topics with a policy of their own keep it.",
    remove_help="Remove the namespace's policy; its brokers' configuration counts again.",
)
_add(
    _NAMESPACES,
    "deduplication-snapshot-interval",
    _INTERVAL,
    get_help="Print the snapshot interval of the namespace: in seconds, or null if it is not set.",
    set_help="Set the seconds after which brokers take snapshots: of each topic of the namespace.",
    remove_help="Remove the namespace's interval; its brokers' configuration counts again.",
)


def _chosen(enable: bool, disable: bool) -> bool:
    if enable == disable:
        raise InvalidInputError("write one of --enable and --disable")
    return enable


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    values = answer["values"]
    yield f"asked      {'remove it' if answer['asked'] is None else json.dumps(answer['asked'])}"
    yield f"stored     {json.dumps(answer['stored'])}"
    levels = {"topic": "topic", "topicGlobal": "topic (global)", "namespace": "namespace", "broker": "broker"}
    texts = ", ".join(f"{text} {json.dumps(values[name])}" for name, text in levels.items())
    yield f"in effect  {json.dumps(values['applied'])}, decided by the {values['decidedBy']} ({texts})"
    for number, each in enumerate(answer["statuses"]):
        status = each["status"] or "not loaded: from its next load on"
        yield f"{'' if number else 'now':11}{each['topic']}  {status}"
    yield from (f"note       {remark}" for remark in answer["remarks"])
