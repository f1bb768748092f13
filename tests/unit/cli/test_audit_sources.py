"""``metadata dump`` and ``ledgers list``: arguments become a request, the result a summary."""

import json
from pathlib import Path

import pytest
from pulsar_sidecar.features.audit.sources.manifests import (
    InputKind,
    Manifest,
    NewestWrite,
    OrderRange,
    Proof,
    RowCounts,
    Source,
    SourceKind,
)

from tests.unit.cli.running import Terminal

MADE = Manifest(
    kind=InputKind.DUMP,
    source=Source(SourceKind.ZOOKEEPER, "zookeeper:2181"),
    tool_version="1",
    ledgers_root="/ledgers",
    instance_id="instance",
    cluster_name="local",
    zxids=OrderRange(1, 2),
    as_of=NewestWrite(2, 3),
    counts={"nodes": RowCounts(5, 1)},
    left_out=(),
    allows_deletion=True,
    reservations=(),
    proof=Proof("begun", "ended"),
)


def test_a_dump_as_it_is_usually_asked_for(terminal: Terminal) -> None:
    terminal.manifest = MADE
    ran = terminal.run("metadata", "dump", "--source", "zk://zookeeper:2181", "--output", "out")
    assert ran.code == 0
    assert "instance id" in ran.out
    assert ran.err == "working\n"
    (request,) = terminal.dumped
    assert (request.source, request.output, request.ledgers_root) == ("zk://zookeeper:2181", Path("out"), "/ledgers")
    assert (request.nodes_per_second, request.metadata_store_auth, request.without_ledgers) == (None, None, False)


def test_every_option_of_a_dump(terminal: Terminal) -> None:
    terminal.manifest = MADE
    ran = terminal.run(
        "--output", "json", "metadata", "dump", "--source", "zk-snapshot:/z/snapshot.1", "--output", "out",
        "--chroot", "/c/", "--rate", "50", "--ledgers-root-path", "/l", "--without-ledgers", "--cursors-from", "zk:z:2",
        "--metadata-store-auth", "digest:a:b",
    )  # fmt: skip
    assert ran.code == 0
    assert json.loads(ran.out)["counts"]["nodes"] == {"rows": 5, "unreadable": 1}
    (request,) = terminal.dumped
    assert (request.chroot, request.ledgers_root, request.without_ledgers) == ("/c", "/l", True)
    assert (request.cursors_from, request.nodes_per_second) == ("zk:z:2", 50)
    assert request.metadata_store_auth == "digest:a:b"
    assert "digest" not in repr(request)


def test_addresses_and_credentials_come_from_the_environment(terminal: Terminal) -> None:
    terminal.manifest = MADE
    terminal.set("PULSAR_CLIENT_CONF", "/no/such/client.conf")  # a client's, for brokers: it is not read
    terminal.set("PULSAR_SIDECAR_METADATA_STORE_URL", "zk:z:2181")
    terminal.set("PULSAR_SIDECAR_METADATA_STORE_AUTH", "digest:a:b")
    assert terminal.run("ledgers", "list", "--output", "out", "--with-metadata").code == 0
    (request,) = terminal.listed
    assert (request.metadata_store_url, request.metadata_store_auth) == ("zk:z:2181", "digest:a:b")
    assert request.with_metadata
    assert terminal.run("ledgers", "list", "--output", "out", "--rate", "5").code == 0
    assert terminal.listed[1].ledgers_per_second == 5
    assert terminal.run("metadata", "dump", "--source", "zk:z:2181", "--output", "out").code == 0
    assert terminal.dumped[0].metadata_store_auth == "digest:a:b"


def test_places_of_tiered_storage(terminal: Terminal) -> None:
    terminal.manifest = MADE
    terminal.set("PULSAR_SIDECAR_METADATA_STORE_URL", "zk:z:2181")
    ran = terminal.run(
        "offload", "list", "--location", "s3://b", "--location", "file:///tiered", "--region", "eu-west-1",
        "--cluster", "east", "--output", "out",
    )  # fmt: skip
    assert ran.code == 0
    (request,) = terminal.listed_offloaded
    assert (request.locations, request.region) == (("s3://b", "file:///tiered"), "eu-west-1")
    assert (request.cluster_name, request.metadata_store_url) == ("east", "zk:z:2181")


@pytest.mark.parametrize("command", [("metadata", "dump", "--source", "x"), ("ledgers", "list")])
def test_a_failure_ends_with_1_and_nothing_on_standard_output(terminal: Terminal, command: tuple[str, ...]) -> None:
    ran = terminal.run(*command, "--output", "out")
    assert (ran.code, ran.out) == (1, "")
    assert "nothing was read for this test" in ran.err


@pytest.mark.parametrize("command", [("metadata", "dump", "--source", "x"), ("ledgers", "list")])
def test_a_source_and_a_directory_are_wanted(terminal: Terminal, command: tuple[str, ...]) -> None:
    assert "--output" in terminal.run(*command).err
    assert terminal.run(*command, "--output", "out", "--rate", "-1").code == 1
    assert "--source" in terminal.run("metadata", "dump", "--output", "out").err
