"""``...-dispatcher-pause-on-ack-state-persistent`` of topics and namespaces, by pulsar-admin's names (PIP-299)."""

from collections.abc import Callable
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.connecting import GlobalOptions
from pulsar_sidecar.cli.exits import EXIT_CODES, exiting
from pulsar_sidecar.cli.groups.topics import app as topics_app
from pulsar_sidecar.cli.groups.topics import topic_path
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import java_url_encode, parse_topic_name

_NAME = "dispatcher-pause-on-ack-state-persistent"
_ROUTE = "dispatcherPauseOnAckStatePersistent"
_SAYS = {True: "true", False: "false", None: "null"}
_TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic")]
_NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="tenant/namespace")]
_Applied = Annotated[
    bool, typer.Option("--applied", "-ap", help="What is in effect: topic, else namespace, else broker.")
]
_Force = Annotated[
    bool, typer.Option("--force", "-f", help="Even if the broker then stores a false that overrides a true.")
]

namespaces_app = typer.Typer(
    name="namespaces", help="Pause dispatch before acknowledgements are forgotten.", no_args_is_help=True
)


@namespaces_app.callback(epilog=EXIT_CODES)
def _group() -> None:
    """Pause dispatch before acknowledgements are forgotten (PIP-299)."""


@topics_app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_topic(ctx: typer.Context, topic: _TopicArgument, applied: _Applied = False) -> None:
    """Print whether the topic's own policy is true; with --applied what is in effect, null if it cannot be told.

    Example: pulsar-sidecar topics get-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders -ap
    """
    _get(ctx, lambda: _of_topic(topic), {"applied": "true"} if applied else None)


@topics_app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_topic(ctx: typer.Context, topic: _TopicArgument) -> None:
    """Pause dispatch of the topic's subscriptions while their acknowledgements do not fit.

    Example: pulsar-sidecar topics set-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    _set(ctx, lambda: _of_topic(topic))


@topics_app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_topic(ctx: typer.Context, topic: _TopicArgument, force: _Force = False) -> None:
    """Remove the topic's own policy, as far as brokers can; prints what really happened.

    Example: pulsar-sidecar topics remove-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    _remove(ctx, lambda: _of_topic(topic), {"force": "true"} if force else None)


@namespaces_app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_namespace(ctx: typer.Context, namespace: _NamespaceArgument) -> None:
    """Print what the namespace's policies say; null if they say nothing.

    Example: pulsar-sidecar namespaces get-dispatcher-pause-on-ack-state-persistent public/default
    """
    _get(ctx, lambda: _of_namespace(namespace), None)


@namespaces_app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_namespace(ctx: typer.Context, namespace: _NamespaceArgument) -> None:
    """Pause dispatch in the namespace while acknowledgements do not fit, where no topic says otherwise.

    Example: pulsar-sidecar namespaces set-dispatcher-pause-on-ack-state-persistent public/default
    """
    _set(ctx, lambda: _of_namespace(namespace))


@namespaces_app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_namespace(ctx: typer.Context, namespace: _NamespaceArgument) -> None:
    """Remove the namespace's policy, so that its brokers' configuration counts again; prints what really happened.

    Example: pulsar-sidecar namespaces remove-dispatcher-pause-on-ack-state-persistent public/default
    """
    _remove(ctx, lambda: _of_namespace(namespace), None)


def _get(ctx: typer.Context, path: Callable[[], str], parameters: dict[str, str] | None) -> None:
    options: GlobalOptions = ctx.obj
    with exiting():
        says = options.client().call("GET", path(), parameters=parameters)
        output.result(_SAYS.get(says, str(says)) if isinstance(says, bool | None) else str(says))


def _set(ctx: typer.Context, path: Callable[[], str]) -> None:
    options: GlobalOptions = ctx.obj
    with exiting():
        options.client().call("POST", path())
        output.info("set to true")


def _remove(ctx: typer.Context, path: Callable[[], str], parameters: dict[str, str] | None) -> None:
    options: GlobalOptions = ctx.obj
    with exiting():
        removal = options.client().call("DELETE", path(), parameters=parameters)
        output.document(removal, options.output)


def _of_topic(topic: str) -> str:
    return f"{topic_path(parse_topic_name(topic))}/{_ROUTE}"


def _of_namespace(namespace: str) -> str:
    tenant, slash, name = namespace.partition("/")
    if not slash or not tenant or not name or "/" in name:
        raise InvalidInputError("write a namespace as tenant/namespace")
    return f"/admin/v2/namespaces/{java_url_encode(tenant)}/{java_url_encode(name)}/{_ROUTE}"
