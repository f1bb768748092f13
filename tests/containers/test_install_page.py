"""docs/install-containers.md, word by word, beside a cluster that has another address than this machine's own.

Only what the page has its reader write is written here: the cluster's addresses, and the network that it is on.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.choosing import COMPOSE_MEMBERS, PROJECT
from tests.cluster.compose import PROJECT_NAME, composed
from tests.cluster.install_pages import commands_of, run, shown

pytestmark = pytest.mark.containers

PAGE = PROJECT / "docs" / "install-containers.md"
SOURCES = ("deploy", "service", "pyspark_jobs", "pyproject.toml", "README.md", "LICENSE", ".dockerignore")
HOST = "pulsar"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[None]:
    """Brokers, bookies and ZooKeeper that other containers of their network reach under one name."""
    advertised = {"environment": {"advertisedAddress": HOST}}
    changes = {name: advertised for name in COMPOSE_MEMBERS if name != "zookeeper"}
    network = {"networks": {"default": {"aliases": [HOST]}}}
    with composed(PROJECT, tmp_path / "cluster", COMPOSE_MEMBERS, {**changes, "network": network}):
        yield


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in SOURCES:
        source = PROJECT / name
        shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy)
    return copy


def edited(example: str) -> str:
    """Return the example as a reader edits it, with the addresses of this cluster."""
    return (
        example.replace("zk:zookeeper:2181", f"zk:{HOST}:2181")
        .replace("http://broker-1:8080,http://broker-2:8080", f"http://{HOST}:8080,http://{HOST}:8081")
        .replace("pulsar://broker-1:6650,broker-2:6650", f"pulsar://{HOST}:6650,{HOST}:6651")
    )


def test_every_command_of_the_page_in_its_order(cluster: None, checkout: Path) -> None:
    parts = checkout / "deploy" / "compose"
    # The cluster's own containers hold the usual port of this machine.
    (parts / "compose.override.yaml").write_text(
        f"networks: {{default: {{name: {PROJECT_NAME}_default, external: true}}}}\n"
        "services: {sidecar: {ports: !override ['127.0.0.1::8750']}}\n"
    )
    editor = checkout / "editor"
    (checkout / "edited").write_text(edited((parts / "sidecar.env.example").read_text()))
    editor.write_text(f'#!/bin/sh\ncp {checkout}/edited "$1"\n')
    editor.chmod(0o755)

    environment = os.environ | {"EDITOR": str(editor), "COMPOSE_PROJECT_NAME": f"{PROJECT_NAME}-page"}
    script = "\n".join(map(shown, commands_of(PAGE)))
    try:
        done = run(script, checkout, environment)
    finally:
        run(f"cd {parts}; docker compose --profile '*' down --volumes", checkout, environment)

    assert done.returncode == 0, done.stdout[-3_000:]
    _, _, doctor = done.stdout.partition(" doctor\n")
    doctor, _, after = doctor.partition("$ docker compose up")
    assert doctor.rstrip().endswith(", 0 failed")
    assert re.search(r"^ok +brokers ", doctor, re.MULTILINE), doctor
    assert "sidecar-1" in after.partition("ledger-deletion status\n")[2], after
    assert "ledgers in the listing" in after
