"""Which cluster the tests run on: one that exists, else one in containers, else one of processes on this machine.

Invariant: a named cluster is used or the run fails; the other two are tried only when none is named. Containers run one
version of Pulsar, so naming another one means processes. Whatever is started here is taken down here, and also when the
test process is killed.
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
"""The variable's value for a cluster in containers, also where a test wants brokers with settings of their own."""

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
"""Until it has ended no broker serves a killed broker's topics; 30 s by default."""
FAST_BOOKIE_SESSIONS = {"zkTimeout": "10000"}
"""A killed bookie cannot be registered again before its session has ended."""

NO_ENGINE = "no container engine answers: start one that `docker` and `docker compose` reach"
_ENGINE_TIMEOUT_SECONDS = 10


@contextmanager
def chosen_cluster(directory: Path) -> Iterator[ClusterUnderTest]:
    """The cluster for tests that need nothing special of it.

    Args:
        directory: a new directory, used if a local cluster is started.
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
    """A cluster with settings of one's own: processes of this machine, unless the variable asks for containers."""
    return (compose_cluster if os.environ.get(CLUSTER_VARIABLE) == CONTAINERS else local_cluster)(spec)


def version_under_test() -> str:
    """Pulsar's version for every cluster that tests start: the one named, else the one that is developed against."""
    return os.environ.get(VERSION_VARIABLE, DEFAULT_VERSION)


def line_under_test() -> Line:
    """The line of that version, for what lines of Pulsar do otherwise: ``line_under_test() >= (4, 2)``."""
    line = line_of(version_under_test())
    assert line is not None, f"{VERSION_VARIABLE} is not a version of Pulsar: {version_under_test()}"
    return line


def named_cluster(value: str) -> ClusterAddresses:
    """Addresses given as the line that ``local-cluster up --json`` prints, or as the path of a file with that line."""
    return parse_addresses(value if value.lstrip().startswith("{") else Path(value).read_text())


def parse_addresses(text: str) -> ClusterAddresses:
    """Read a line written by ``json_line``; keys that are not needed to reach the cluster may be absent."""
    try:
        return msgspec.json.decode(text, type=ClusterAddresses, dec_hook=lambda kind, value: kind(value))
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"this is not what up --json prints: {error}") from error


def docker_engine_answers() -> bool:
    """Whether ``docker`` reaches an engine and has the compose plugin; a missing or silent engine is no error."""
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
    """The Pulsar services of ``docker-compose.yml``, without sidecars, with the settings of ``spec``."""
    if not docker_engine_answers():
        pytest.skip(NO_ENGINE)
    settings = {Role.BROKER: spec.broker_conf, Role.BOOKIE: spec.bookie_conf}
    changes = {name: with_settings(settings.get(role_of(name), {})) for name in COMPOSE_MEMBERS}
    with composed(PROJECT, spec.directory, COMPOSE_MEMBERS, changes) as compose:
        yield ComposeClusterUnderTest(COMPOSE_ADDRESSES, compose)


@contextmanager
def local_cluster(spec: ClusterSpec) -> Iterator[ClusterUnderTest]:
    """A cluster of processes that end with this process at the latest."""
    try:
        cluster = LocalCluster.up(replace(spec, ends_with_starter=True))
    except MissingPrerequisiteError as error:
        pytest.skip(f"no cluster to test on: {error}; or name a running one in {CLUSTER_VARIABLE}")
    with cluster:
        yield LocalClusterUnderTest(cluster)
