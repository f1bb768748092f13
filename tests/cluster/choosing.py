"""Choice of the tests' cluster: an existing one, else one in containers, else one of processes on this machine.

Invariant: tests use a named cluster or fail; they try the other two only if none is named. Containers run one version
of Pulsar, so another version means processes. This module takes down every cluster that it starts, also after a kill
of the test process.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION, ClusterSpec, MissingPrerequisiteError, Role, role_of
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.pulsar_versions import Line, line_of

from tests.cluster.compose import composed, with_settings
from tests.cluster.running import (
    ClusterUnderTest,
    ComposeClusterUnderTest,
    ExternalClusterUnderTest,
    LocalClusterUnderTest,
)

CLUSTER_VARIABLE = "PULSAR_SIDECAR_TEST_CLUSTER"
CONTAINERS = "containers"
"""The variable's value for clusters in containers, including those with special settings."""

VERSION_VARIABLE = "PULSAR_SIDECAR_TEST_PULSAR_VERSION"
PROJECT = Path(__file__).parents[2]
COMPOSE_MEMBERS = ("zookeeper", "bookie-1", "bookie-2", "broker-1", "broker-2")
COMPOSE_ADDRESSES = ClusterAddresses(
    web_service_urls=("http://127.0.0.1:8080", "http://127.0.0.1:8081"),
    broker_service_url="pulsar://127.0.0.1:6650,127.0.0.1:6651",
    metadata_store_url="zk:127.0.0.1:2181",
    bookie_http_urls=("http://127.0.0.1:8000", "http://127.0.0.1:8001"),
    directory=None,
    version=DEFAULT_VERSION,
    cluster_name="local",
    members={},
    member_urls={
        "zookeeper": "zk:127.0.0.1:2181",
        "bookie-1": "http://127.0.0.1:8000",
        "bookie-2": "http://127.0.0.1:8001",
        "broker-1": "http://127.0.0.1:8080",
        "broker-2": "http://127.0.0.1:8081",
    },
)
FAST_SESSIONS = {"metadataStoreSessionTimeoutMillis": "10000"}
"""Session timeout of brokers, 30 s by default, during which no broker serves a killed broker's topics."""
FAST_BOOKIE_SESSIONS = {"zkTimeout": "10000"}
"""Session timeout of bookies: a killed bookie cannot register again before its session expires."""

NO_ENGINE = "no container engine answers: start one that `docker` and `docker compose` reach"
_ENGINE_TIMEOUT_SECONDS = 10


@contextmanager
def chosen_cluster(directory: Path) -> Iterator[ClusterUnderTest]:
    """Yield the cluster for tests without special needs.

    Args:
        directory: new directory for a local cluster.
    """
    named = os.environ.get(CLUSTER_VARIABLE)
    if named and named != CONTAINERS:
        yield ExternalClusterUnderTest(named_cluster(named))
        return
    spec = ClusterSpec(
        directory, version=version_under_test(), broker_conf=FAST_SESSIONS, bookie_conf=FAST_BOOKIE_SESSIONS
    )
    if named or (VERSION_VARIABLE not in os.environ and docker_engine_answers()):
        with compose_cluster(spec) as cluster:
            yield cluster
    else:
        with local_cluster(spec) as cluster:
            yield cluster


def started_cluster(spec: ClusterSpec) -> AbstractContextManager[ClusterUnderTest]:
    """Return a cluster with special settings: processes on this machine, or containers if the variable is set."""
    return (compose_cluster if os.environ.get(CLUSTER_VARIABLE) == CONTAINERS else local_cluster)(spec)


def version_under_test() -> str:
    """Return Pulsar's version for all clusters that tests start: the named one, else the default."""
    return os.environ.get(VERSION_VARIABLE, DEFAULT_VERSION)


def line_under_test() -> Line:
    """Return the line of that version, for differences between lines: ``line_under_test() >= (4, 2)``."""
    line = line_of(version_under_test())
    assert line is not None, f"{VERSION_VARIABLE} is not a version of Pulsar: {version_under_test()}"
    return line


def named_cluster(value: str) -> ClusterAddresses:
    """Return addresses from the output of ``local-cluster up --json``, or from the path of a file with it."""
    return parse_addresses(value if value.lstrip().startswith("{") else Path(value).read_text())


def parse_addresses(text: str) -> ClusterAddresses:
    """Parse a line of ``json_line``; keys that a client does not need may be absent."""
    try:
        return msgspec.json.decode(text, type=ClusterAddresses, dec_hook=lambda kind, value: kind(value))
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"this is not what up --json prints: {error}") from error


def docker_engine_answers() -> bool:
    """Return True if ``docker`` reaches an engine and has the compose plugin; a missing engine is no error."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    questions = ([docker, "version", "--format", "{{.Server.Version}}"], [docker, "compose", "version"])
    try:
        return all(
            subprocess.run(q, capture_output=True, check=False, timeout=_ENGINE_TIMEOUT_SECONDS).returncode == 0
            for q in questions
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def compose_cluster(spec: ClusterSpec) -> Iterator[ClusterUnderTest]:
    """Run the Pulsar services of ``docker-compose.yml``, without sidecars, with the settings of ``spec``."""
    if not docker_engine_answers():
        pytest.skip(NO_ENGINE)
    settings = {Role.BROKER: spec.broker_conf, Role.BOOKIE: spec.bookie_conf}
    changes = {name: with_settings(settings.get(role_of(name), {})) for name in COMPOSE_MEMBERS}
    with composed(PROJECT, spec.directory, COMPOSE_MEMBERS, changes) as compose:
        yield ComposeClusterUnderTest(COMPOSE_ADDRESSES, compose)


@contextmanager
def local_cluster(spec: ClusterSpec) -> Iterator[ClusterUnderTest]:
    """Run a cluster of processes, which end with this process at the latest."""
    try:
        cluster = LocalCluster.up(replace(spec, ends_with_starter=True))
    except MissingPrerequisiteError as error:
        pytest.skip(f"no cluster to test on: {error}; or name a running one in {CLUSTER_VARIABLE}")
    with cluster:
        yield LocalClusterUnderTest(cluster)
