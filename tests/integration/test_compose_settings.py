"""The images' entry script replaces only settings in the distribution's files, so ours must be there."""

import re
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.local_cluster.software import find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec, MissingPrerequisiteError
from ruamel.yaml import YAML

from tests.cluster.choosing import COMPOSE_MEMBERS, PROJECT

FOR_THE_JVM = {"PULSAR_MEM", "PULSAR_GC", "BOOKIE_MEM", "BOOKIE_GC"}


@pytest.fixture(scope="module")
def distribution() -> Path:
    try:
        return find_software(ClusterSpec(Path())).distribution
    except MissingPrerequisiteError as error:
        pytest.skip(f"the distribution's files cannot be read: {error}")


@pytest.mark.parametrize("member", COMPOSE_MEMBERS)
def test_settings_stand_in_the_file_the_entry_script_edits(member: str, distribution: Path) -> None:
    service: dict[str, Any] = YAML(typ="safe").load(PROJECT / "docker-compose.yml")["services"][member]
    edited = re.search(r"conf/\w+\.conf", service["command"])
    assert edited is not None
    lines = (distribution / edited.group()).read_text().splitlines()
    known = {line.partition("=")[0].strip() for line in lines if not line.startswith("#")}
    settings = set(service["environment"]) - FOR_THE_JVM
    assert settings
    assert settings <= known
