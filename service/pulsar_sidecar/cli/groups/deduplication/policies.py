"""``pulsar-sidecar topics|namespaces get|set|remove-deduplication[-snapshot-interval]``, by pulsar-admin's names."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES
from pulsar_sidecar.cli.connecting import Context, NamespaceArgument, Output, Topic, namespace_path, topic_path
from pulsar_sidecar.cli.groups.delayed_messages import app as topics_app
from pulsar_sidecar.cli.groups.topics import namespaces_app
from pulsar_sidecar.model.errors import InvalidInputError

_TOPIC_ENABLED, _NAMESPACE_ENABLED = "deduplicationEnabled", "deduplication"
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


@topics_app.command("get-deduplication", epilog=EXIT_CODES)
def get_of_topic(ctx: Context, topic: Topic, applied: _Applied = False) -> None:
    """Print the topic's own policy, or null if it is not set; with --applied the policy in effect.

    Example: pulsar-sidecar topics get-deduplication persistent://public/default/orders -ap
    """
    _get(ctx, f"{topic_path(topic)}/{_TOPIC_ENABLED}", applied=applied)


@topics_app.command("set-deduplication", epilog=EXIT_CODES)
def set_of_topic(
    ctx: Context, topic: Topic, enable: _Enable = False, disable: _Disable = False, form: Output = None
) -> None:
    """Switch deduplication on or off for a topic; prints what the broker stored and what it does now.

    Example: pulsar-sidecar topics set-deduplication persistent://public/default/orders --enable
    """
    _change(ctx, form, "POST", f"{topic_path(topic)}/{_TOPIC_ENABLED}", _chosen(enable, disable))


@topics_app.command("remove-deduplication", epilog=EXIT_CODES)
def remove_of_topic(ctx: Context, topic: Topic, form: Output = None) -> None:
    """Remove the topic's own policy, so that its namespace's or its broker's counts again.

    Example: pulsar-sidecar topics remove-deduplication persistent://public/default/orders
    """
    _change(ctx, form, "DELETE", f"{topic_path(topic)}/{_TOPIC_ENABLED}")


@topics_app.command("get-deduplication-snapshot-interval", epilog=EXIT_CODES)
def get_interval_of_topic(ctx: Context, topic: Topic, applied: _Applied = False) -> None:
    """Print the snapshot interval of the topic's own policy in seconds, or null if it is not set.

    Example: pulsar-sidecar topics get-deduplication-snapshot-interval persistent://public/default/orders
    """
    _get(ctx, f"{topic_path(topic)}/{_INTERVAL}", applied=applied)


@topics_app.command("set-deduplication-snapshot-interval", epilog=EXIT_CODES)
def set_interval_of_topic(ctx: Context, topic: Topic, interval: _Interval, form: Output = None) -> None:
    """Set the number of seconds after which brokers take a snapshot of the topic.

    Example: pulsar-sidecar topics set-deduplication-snapshot-interval persistent://public/default/orders -i 60
    """
    _change(ctx, form, "POST", f"{topic_path(topic)}/{_INTERVAL}", interval)


@topics_app.command("remove-deduplication-snapshot-interval", epilog=EXIT_CODES)
def remove_interval_of_topic(ctx: Context, topic: Topic, form: Output = None) -> None:
    """Remove the topic's own interval, so that its namespace's or its broker's counts again.

    Example: pulsar-sidecar topics remove-deduplication-snapshot-interval persistent://public/default/orders
    """
    _change(ctx, form, "DELETE", f"{topic_path(topic)}/{_INTERVAL}")


@namespaces_app.command("get-deduplication", epilog=EXIT_CODES)
def get_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Print the namespace's policy, or null if it is not set.

    Example: pulsar-sidecar namespaces get-deduplication public/default
    """
    _get(ctx, f"{namespace_path(namespace)}/{_NAMESPACE_ENABLED}")


@namespaces_app.command("set-deduplication", epilog=EXIT_CODES)
def set_of_namespace(
    ctx: Context, namespace: NamespaceArgument, enable: _Enable = False, disable: _Disable = False, form: Output = None
) -> None:
    """Switch deduplication on or off for a namespace; topics with a policy of their own keep it.

    Example: pulsar-sidecar namespaces set-deduplication public/default --enable
    """
    _change(ctx, form, "POST", f"{namespace_path(namespace)}/{_NAMESPACE_ENABLED}", _chosen(enable, disable))


@namespaces_app.command("remove-deduplication", epilog=EXIT_CODES)
def remove_of_namespace(ctx: Context, namespace: NamespaceArgument, form: Output = None) -> None:
    """Remove the namespace's policy, so that its brokers' configuration counts again.

    Example: pulsar-sidecar namespaces remove-deduplication public/default
    """
    _change(ctx, form, "DELETE", f"{namespace_path(namespace)}/{_NAMESPACE_ENABLED}")


@namespaces_app.command("get-deduplication-snapshot-interval", epilog=EXIT_CODES)
def get_interval_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Print the snapshot interval of the namespace's policy in seconds, or null if it is not set.

    Example: pulsar-sidecar namespaces get-deduplication-snapshot-interval public/default
    """
    _get(ctx, f"{namespace_path(namespace)}/{_INTERVAL}")


@namespaces_app.command("set-deduplication-snapshot-interval", epilog=EXIT_CODES)
def set_interval_of_namespace(
    ctx: Context, namespace: NamespaceArgument, interval: _Interval, form: Output = None
) -> None:
    """Set the number of seconds after which brokers take snapshots of the namespace's topics.

    Example: pulsar-sidecar namespaces set-deduplication-snapshot-interval public/default -i 60
    """
    _change(ctx, form, "POST", f"{namespace_path(namespace)}/{_INTERVAL}", interval)


@namespaces_app.command("remove-deduplication-snapshot-interval", epilog=EXIT_CODES)
def remove_interval_of_namespace(ctx: Context, namespace: NamespaceArgument, form: Output = None) -> None:
    """Remove the namespace's interval, so that its brokers' configuration counts again.

    Example: pulsar-sidecar namespaces remove-deduplication-snapshot-interval public/default
    """
    _change(ctx, form, "DELETE", f"{namespace_path(namespace)}/{_INTERVAL}")


def _chosen(enable: bool, disable: bool) -> bool:
    if enable == disable:
        raise InvalidInputError("write one of --enable and --disable")
    return enable


def _get(ctx: Context, path: str, *, applied: bool = False) -> None:
    value = ctx.obj.client().call("GET", path, parameters={"applied": "true" if applied else None})
    output.result(_written(cast("bool | int | None", value)))


def _change(ctx: Context, form: output.Format | None, method: str, path: str, value: bool | int | None = None) -> None:
    answer = cast("dict[str, Any]", ctx.obj.client().call(method, path, value))
    if ctx.obj.format(form) is output.Format.JSON:
        output.document(answer, output.Format.JSON)
    else:
        output.result(output.printable("\n".join(_lines(answer))))


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    values = answer["values"]
    yield f"asked      {'remove it' if answer['asked'] is None else _written(answer['asked'])}"
    yield f"stored     {_written(answer['stored'])}"
    levels = {"topic": "topic", "topicGlobal": "topic (global)", "namespace": "namespace", "broker": "broker"}
    told = ", ".join(f"{text} {_written(values[name])}" for name, text in levels.items())
    yield f"in effect  {_written(values['applied'])}, decided by the {values['decidedBy']} ({told})"
    for number, each in enumerate(answer["statuses"]):
        status = each["status"] or "not loaded: from its next load on"
        yield f"{'' if number else 'now':11}{each['topic']}  {status}"
    yield from (f"note       {remark}" for remark in answer["remarks"])


def _written(value: bool | int | None) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
