"""``pulsar-sidecar local-cluster``: a real Pulsar cluster on this machine; ``demo``: the main job on one.

Invariant: standard output has only results (addresses, states); progress goes to standard error.
"""

import signal
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, CommandGroup, new_group
from pulsar_sidecar.cli.connecting import Context
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import (
    DEFAULT_VERSION,
    ClusterNotFoundError,
    ClusterSpec,
    MissingPrerequisiteError,
    Role,
    cache_directory,
    parse_settings,
)
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError

_DEMO_HELP = """Demonstrate the sidecar on a real cluster that it starts on this machine.

The demo deletes topics while both brokers are killed, over the brokers' own REST API and through the sidecar. It counts
the ledgers left behind, finds them by an audit with both engines, and deletes them until a last audit is clean. The
cluster and the sidecar run until `demo down` stops them and removes their files.

The exit code is 0 only if all of this succeeds. The demo needs a JDK 17+, Maven the first time, and PySpark
(pip install 'pulsar-sidecar[demo]'), because it compares the Spark job's audit with that of the embedded engine.

Example: pulsar-sidecar demo --topics 100"""
_EXIT_CODES = """Exit codes: 0 done; 1 failed or wrong usage, with the reason on standard error; 3 a JDK 17+,
Maven or etcd is missing; 4 no such cluster or member, or (status) a member that is not up."""


def _setting(whose: str, metavar: str = "KEY=VALUE") -> Any:
    return typer.Option(metavar=metavar, help=f"A setting {whose}. May be repeated.")


class MetadataStoreName(StrEnum):
    """Metadata stores that a local cluster can have."""

    ZOOKEEPER = "zookeeper"
    ETCD = "etcd"


class _LocalClusterGroup(CommandGroup):
    @staticmethod
    def exit_code(error: SidecarError) -> int:
        codes: dict[type[SidecarError], int] = {MissingPrerequisiteError: 3, ClusterNotFoundError: 4}
        return codes.get(type(error), 1)


app = new_group(
    "local-cluster",
    "Start, inspect, break and take down a real Pulsar cluster on this machine.",
    cls=_LocalClusterGroup,
    epilog=_EXIT_CODES,
)

demo_app = typer.Typer(
    name="demo", cls=CommandGroup, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES, help=_DEMO_HELP
)

_DemoDirectory = Annotated[
    Path | None, typer.Option("--dir", help="The demo's own directory. Default: demo, in the cache.")
]
_Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIRECTORY",
        help="The cluster's own directory: configuration, data, logs. Default: clusters/default in the cache, "
        "which is $PULSAR_SIDECAR_CACHE or ~/.cache/pulsar-sidecar.",
    ),
]
_MetadataStore = Annotated[
    MetadataStoreName,
    typer.Option(help="etcd must be installed (Debian and Ubuntu: package etcd-server)."),
]
_Json = Annotated[bool, typer.Option("--json", hidden=True)]
_Name = Annotated[str, typer.Argument(help="zookeeper (or etcd), bookie-1, broker-2, ...")]


@app.command(epilog=_EXIT_CODES)
def up(
    ctx: Context,
    brokers: Annotated[int, typer.Option(min=0, help="Number of brokers.")] = 2,
    bookies: Annotated[int, typer.Option(min=1, help="Number of bookies.")] = 2,
    directory: _Directory = None,
    version: Annotated[str, typer.Option(help="Pulsar's version, fetched once.")] = DEFAULT_VERSION,
    broker_conf: Annotated[list[str] | None, _setting("of broker.conf, for every broker")] = None,
    bookie_conf: Annotated[list[str] | None, _setting("of bookkeeper.conf, for every bookie")] = None,
    zookeeper_conf: Annotated[list[str] | None, _setting("of zookeeper.conf")] = None,
    member_conf: Annotated[list[str] | None, _setting("of one member", "NAME:KEY=VALUE")] = None,
    metadata_store: _MetadataStore = MetadataStoreName.ZOOKEEPER,
    offloaders: Annotated[
        bool, typer.Option("--offloaders", help="Fetch the tiered-storage offloaders and load them.")
    ] = False,
    json: _Json = False,
) -> None:
    """Start a cluster: metadata store, bookies (HTTP admin on) and brokers; and wait until all are ready.

    Everything listens on 127.0.0.1 on free ports, and stays up until "down". Needs a JDK 17 or later, and Maven the
    first time.

    Example: local-cluster up --brokers 1 --broker-conf transactionCoordinatorEnabled=true --output-format json
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # end the members started so far
        signal.signal(number, signal.default_int_handler)
    spec = ClusterSpec(
        directory=_directory(directory),
        brokers=brokers,
        bookies=bookies,
        version=version,
        broker_conf=parse_settings(broker_conf or []),
        bookie_conf=parse_settings(bookie_conf or []),
        zookeeper_conf=parse_settings(zookeeper_conf or []),
        member_conf=_member_settings(member_conf or []),
        offloaders=offloaders,
        metadata_store=Role(metadata_store.value),
    )
    addresses = LocalCluster.up(spec, _stopwatch()).addresses()
    lines = (
        f"web service     {' '.join(addresses.web_service_urls)}",
        f"broker service  {addresses.broker_service_url}",
        f"metadata store  {addresses.metadata_store_url}",
        f"bookies (HTTP)  {' '.join(addresses.bookie_http_urls)}",
        f"directory       {addresses.directory}",
    )
    is_json = json or ctx.obj.format is output.Format.JSON
    output.result(addresses.json_line() if is_json else "\n".join(lines))


@app.command(epilog=_EXIT_CODES)
def status(ctx: Context, directory: _Directory = None, json: _Json = False) -> None:
    """Print which members run and are ready; exit code 4 if one is not."""
    cluster = LocalCluster(_directory(directory))
    states = cluster.status()
    addresses = cluster.addresses()
    lines = (
        f"{name:12} {'up' if is_up else 'DOWN':5} pid {addresses.members[name]:<8} {addresses.member_urls[name]}"
        for name, is_up in states.items()
    )
    is_json = json or ctx.obj.format is output.Format.JSON
    output.result(addresses.json_line(ready=states) if is_json else "\n".join(lines))
    if not all(states.values()):
        down_members = ", ".join(name for name, is_up in states.items() if not is_up)
        raise ClusterNotFoundError(f"not up: {down_members}; start them with restart")


@app.command(epilog=_EXIT_CODES)
def down(directory: _Directory = None) -> None:
    """End every process of the cluster and remove its directory; no error if there is none."""
    LocalCluster(_directory(directory)).down()


@app.command(epilog=_EXIT_CODES)
def kill(name: _Name, directory: _Directory = None) -> None:
    """Kill one member at once (SIGKILL); start it again with restart."""
    LocalCluster(_directory(directory)).kill(name)


@app.command(epilog=_EXIT_CODES)
def restart(name: _Name, directory: _Directory = None) -> None:
    """Start one member again with its ports and data; one that runs is stopped first."""
    LocalCluster(_directory(directory), progress=_stopwatch()).restart(name)


@demo_app.callback(invoke_without_command=True)
def _demo(
    ctx: Context,
    directory: _DemoDirectory = None,
    topics: Annotated[int, typer.Option(min=1, max=1000, help="Number of topics that each step deletes.")] = 100,
    metadata_store: _MetadataStore = MetadataStoreName.ZOOKEEPER,
) -> None:
    if ctx.invoked_subcommand is None:
        report = ctx.obj.programs.run_demo(directory, topics, Role(metadata_store.value), output.info)
        output.result("\n".join(report.lines()))
        raise typer.Exit(0 if report.succeeded else 1)


@demo_app.command("down", help="End the demo's processes and remove its files.", epilog=EXIT_CODES)
def _demo_down(ctx: Context, directory: _DemoDirectory = None) -> None:
    ctx.obj.programs.tear_demo_down(directory, output.info)
    output.info("the demo is gone: no process and no file is left")


def _directory(chosen: Path | None) -> Path:
    return (chosen or cache_directory() / "clusters" / "default").expanduser().absolute()


def _stopwatch() -> Callable[[str], None]:
    clock = SystemClock()
    begin = clock.monotonic_seconds()

    def progress(text: str) -> None:
        output.info(f"{clock.monotonic_seconds() - begin:6.1f} s  {text}")

    return progress


def _member_settings(texts: list[str]) -> Mapping[str, Mapping[str, str]]:
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        name, colon, setting = text.partition(":")
        if not colon:
            raise InvalidInputError(f"expected NAME:KEY=VALUE, got {text!r}")
        settings.setdefault(name, {}).update(parse_settings([setting]))
    return settings
