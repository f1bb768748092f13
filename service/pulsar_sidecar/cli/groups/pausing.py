"""``...-dispatcher-pause-on-ack-state-persistent`` of topics and namespaces, by pulsar-admin's names (PIP-299)."""

from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import new_group
from pulsar_sidecar.cli.connecting import Topic, show_answer
from pulsar_sidecar.cli.exits import EXIT_CODES
from pulsar_sidecar.cli.groups.topics import app as topics_app
from pulsar_sidecar.cli.groups.topics import topic_path
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import java_url_encode, parse_topic_name

_NAME = "dispatcher-pause-on-ack-state-persistent"
_ROUTE = "dispatcherPauseOnAckStatePersistent"
_VALUES = {True: "true", False: "false", None: "null"}
_NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="tenant/namespace")]
_Applied = Annotated[
    bool, typer.Option("--applied", "-ap", help="What is in effect: topic, else namespace, else broker.")
]
_Force = Annotated[
    bool, typer.Option("--force", "-f", help="Even if the broker then stores a false that overrides a true.")
]

namespaces_app = new_group("namespaces", "Pause dispatch before acknowledgements are forgotten (PIP-299).")


@topics_app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_topic(ctx: typer.Context, topic: Topic, applied: _Applied = False) -> None:
    """Print whether the topic's own policy is true; with --applied what is in effect, null if it cannot be told.

    Example: pulsar-sidecar topics get-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders -ap
    """
    _get(ctx, _of_topic(topic), {"applied": "true"} if applied else None)


@topics_app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_topic(ctx: typer.Context, topic: Topic) -> None:
    """Pause dispatch of the topic's subscriptions while their acknowledgements do not fit.

    Example: pulsar-sidecar topics set-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    _set(ctx, _of_topic(topic))


@topics_app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_topic(ctx: typer.Context, topic: Topic, force: _Force = False) -> None:
    """Remove the topic's own policy, as far as brokers can; prints what really happened.

    Example: pulsar-sidecar topics remove-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    show_answer(ctx, None, "DELETE", _of_topic(topic), parameters={"force": "true"} if force else None)


@namespaces_app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_namespace(ctx: typer.Context, namespace: _NamespaceArgument) -> None:
    """Print what the namespace's policies say; null if they say nothing.

    Example: pulsar-sidecar namespaces get-dispatcher-pause-on-ack-state-persistent public/default
    """
    _get(ctx, _of_namespace(namespace), None)


@namespaces_app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_namespace(ctx: typer.Context, namespace: _NamespaceArgument) -> None:
    """Pause dispatch in the namespace while acknowledgements do not fit, where no topic says otherwise.

    Example: pulsar-sidecar namespaces set-dispatcher-pause-on-ack-state-persistent public/default
    """
    _set(ctx, _of_namespace(namespace))


@namespaces_app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_namespace(ctx: typer.Context, namespace: _NamespaceArgument) -> None:
    """Remove the namespace's policy, so that its brokers' configuration counts again; prints what really happened.

    Example: pulsar-sidecar namespaces remove-dispatcher-pause-on-ack-state-persistent public/default
    """
    show_answer(ctx, None, "DELETE", _of_namespace(namespace), parameters=None)


def _get(ctx: typer.Context, path: str, parameters: dict[str, str] | None) -> None:
    policy = ctx.obj.client().call("GET", path, parameters=parameters)
    output.result(_VALUES.get(policy, str(policy)))


def _set(ctx: typer.Context, path: str) -> None:
    ctx.obj.client().call("POST", path)
    output.info("set to true")


def _of_topic(topic: str) -> str:
    return f"{topic_path(parse_topic_name(topic))}/{_ROUTE}"


def _of_namespace(namespace: str) -> str:
    tenant, slash, name = namespace.partition("/")
    if not slash or not tenant or not name or "/" in name:
        raise InvalidInputError("write a namespace as tenant/namespace")
    return f"/admin/v2/namespaces/{java_url_encode(tenant)}/{java_url_encode(name)}/{_ROUTE}"
