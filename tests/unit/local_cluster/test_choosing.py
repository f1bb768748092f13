"""Tests run on the cluster that is named, never break it, and pass over Docker quickly where no engine answers."""

import os
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.errors import InvalidInputError

from tests.cluster.choosing import (
    CLUSTER_VARIABLE,
    COMPOSE_ADDRESSES,
    CONTAINERS,
    VERSION_VARIABLE,
    chosen_cluster,
    docker_engine_answers,
    started_cluster,
    version_under_test,
)
from tests.cluster.running import ExternalClusterUnderTest


def pretend_docker(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory) + os.pathsep + os.environ["PATH"])


def test_a_cluster_named_by_its_line_or_by_a_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(COMPOSE_ADDRESSES.json_line() + "\n")
    for named in (COMPOSE_ADDRESSES.json_line(), str(path)):
        monkeypatch.setenv(CLUSTER_VARIABLE, named)
        with chosen_cluster(tmp_path) as cluster:
            assert cluster.addresses == COMPOSE_ADDRESSES


@pytest.mark.parametrize("value", ["{}", "{not json"])
def test_a_wrong_name_fails_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(CLUSTER_VARIABLE, value)
    with pytest.raises(InvalidInputError), chosen_cluster(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_named_version_is_started_here_and_containers_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_docker(tmp_path, "exit 0", monkeypatch)
    monkeypatch.setenv(VERSION_VARIABLE, "4.0.6")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert version_under_test() == "4.0.6"
    with pytest.raises(pytest.skip.Exception, match="no bin/java"), chosen_cluster(tmp_path / "cluster"):
        pass


def test_containers_without_an_engine_are_a_reason_to_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(CLUSTER_VARIABLE, CONTAINERS)
    for start in (chosen_cluster, lambda directory: started_cluster(ClusterSpec(directory))):
        with pytest.raises(pytest.skip.Exception, match="no container engine answers"), start(tmp_path):
            pass


@pytest.mark.parametrize("breaking", ["kill", "stop", "cont", "restart"])
def test_a_test_that_breaks_a_named_cluster_is_skipped_with_a_reason(breaking: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"broker-1.*{CLUSTER_VARIABLE}.*unset"):
        getattr(ExternalClusterUnderTest(COMPOSE_ADDRESSES), breaking)("broker-1")


@pytest.mark.parametrize(
    ("script", "answers"),
    [
        ("exit 0", True),
        ("echo Cannot connect to the Docker daemon >&2; exit 1", False),
        ('[ "$1" != compose ]', False),
    ],
)
def test_an_engine_with_compose_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, answers: bool
) -> None:
    pretend_docker(tmp_path, script, monkeypatch)
    assert docker_engine_answers() is answers
