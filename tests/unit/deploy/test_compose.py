"""The compose file follows the compose specification's schema and sets only what exists. No engine is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.settings.fields import load_settings
from ruamel.yaml import YAML

from tests.cluster.choosing import COMPOSE_ADDRESSES, COMPOSE_MEMBERS, PROJECT

COMPOSE_FILE = PROJECT / "docker-compose.yml"
DOCKERFILE = PROJECT / "deploy" / "Dockerfile"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    document = YAML(typ="safe").load(COMPOSE_FILE)
    services = document["services"]
    assert isinstance(services, dict)
    return services


def check_against_schema(path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )


def test_the_file_follows_the_compose_specification() -> None:
    answer = check_against_schema(COMPOSE_FILE)
    assert answer.returncode == 0, answer.stdout


def test_the_schema_would_notice_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("depends_on:", "depend_on:"))
    assert check_against_schema(wrong).returncode != 0


def test_the_sidecars_environment_is_accepted_by_the_service(services: dict[str, Any]) -> None:
    lines: list[str] = []
    settings = load_settings({}, services["sidecar"]["environment"], warn=lines.append)
    assert lines == []
    assert (settings.topic_two_phase_deletion_enabled, settings.authentication_enabled) == (True, True)
    assert settings.metadata_store_url == COMPOSE_ADDRESSES.metadata_store_url
    assert settings.broker_service_url == COMPOSE_ADDRESSES.broker_service_url
    assert settings.web_service_url in COMPOSE_ADDRESSES.web_service_urls
    # A bookie's delete is unconditional: docs/critiques.md calls it off.
    assert settings.bookie_http_urls == ()


def test_tests_on_containers_know_the_published_ports(services: dict[str, Any]) -> None:
    published = dict(port.rpartition(":")[::2] for port in services["network"]["ports"])
    assert all(host == f"127.0.0.1:{inside}" for host, inside in published.items())
    for url in COMPOSE_ADDRESSES.member_urls.values():
        assert url.rpartition(":")[2] in published.values()
    for address in COMPOSE_ADDRESSES.broker_service_url.removeprefix("pulsar://").split(","):
        assert address in published


def test_every_port_of_a_member_is_published_and_belongs_to_one_member(services: dict[str, Any]) -> None:
    published = [port.rpartition(":")[2] for port in services["network"]["ports"]]
    settings = [setting for name in COMPOSE_MEMBERS for setting in services[name]["environment"].items()]
    ports = [value for key, value in settings if re.search("[pP]ort$", key) and key != "metricsProvider.httpPort"]
    assert len(ports) == 8
    assert sorted([*ports, "2181", "8750"]) == sorted(published)


def test_every_member_can_be_waited_for(services: dict[str, Any]) -> None:
    for name in (*COMPOSE_MEMBERS, "sidecar"):
        assert "test" in services[name]["healthcheck"], name
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for {needed}"


def test_images_name_the_version_the_local_cluster_runs(services: dict[str, Any]) -> None:
    images = {service["image"] for service in services.values() if "image" in service}
    assert images == {f"apachepulsar/pulsar:{COMPOSE_ADDRESSES.version}"}


def test_the_image_is_built_from_files_that_exist_by_a_user_who_is_not_root(services: dict[str, Any]) -> None:
    assert PROJECT / services["sidecar"]["build"]["dockerfile"] == DOCKERFILE
    lines = DOCKERFILE.read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    for path in (path for paths in copied for path in paths):
        assert (PROJECT / path).exists(), path
        assert f"!{path}" in ignored, path
    (user,) = (line.removeprefix("USER ") for line in lines if line.startswith("USER "))
    assert f"chown {user} $$key $$token" in services["sidecar-secret"]["command"][-1]
    assert any("--require-hashes" in line for line in lines)
    assert 'ENTRYPOINT ["pulsar-sidecar", "serve"]' in lines
