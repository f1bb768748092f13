"""The compose files follow the compose specification's schema and set only existing settings. No engine is needed."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.settings.fields import load_settings
from ruamel.yaml import YAML

from tests.cluster.choosing import COMPOSE_ADDRESSES, COMPOSE_MEMBERS, PROJECT
from tests.cluster.compose import FILE
from tests.cluster.go_tools import PROMTOOL, tool_or_skip

COMPOSE_FILE = PROJECT / FILE
PARTS = PROJECT / "deploy" / "compose"
COMPOSE_FILES = (COMPOSE_FILE, PARTS / "compose.yaml", PARTS / "parts.yaml")
SIDECARS = ("sidecar-1", "sidecar-2")
DOCKERFILE = PROJECT / "deploy" / "Dockerfile"


def yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found = yaml(COMPOSE_FILE)["services"]
    assert isinstance(found, dict)
    return found


def check_against_schema(path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_a_file_follows_the_compose_specification(path: Path) -> None:
    answer = check_against_schema(path)
    assert answer.returncode == 0, answer.stdout


def test_the_schema_would_notice_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("depends_on:", "depend_on:"))
    assert check_against_schema(wrong).returncode != 0


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecars_environment_is_accepted_by_the_service(services: dict[str, Any], name: str) -> None:
    lines: list[str] = []
    settings = load_settings({}, services[name]["environment"], warn=lines.append)
    assert lines == []
    assert (settings.topic_two_phase_deletion_enabled, settings.authentication_enabled) == (True, True)
    assert (settings.delayed_message_cancelling_enabled, settings.ledger_deletion_watch) == (True, "append")
    assert settings.metadata_store_url == COMPOSE_ADDRESSES.metadata_store_url
    assert settings.broker_service_url == COMPOSE_ADDRESSES.broker_service_url
    assert settings.web_service_url == ",".join(COMPOSE_ADDRESSES.web_service_urls)
    assert settings.instance_name == name


def test_the_example_for_a_cluster_that_exists_is_accepted_by_the_service() -> None:
    text = (PARTS / "sidecar.env.example").read_text()
    # With its commented-out lines, too.
    lines = [line.removeprefix("#") for line in text.splitlines() if re.match(r"#?[A-Z_]+=", line)]
    environment = {name: value for name, _, value in (line.partition("=") for line in lines)}
    environment["PULSAR_SIDECAR_METADATA_STORE_URL"] = environment["METADATA_STORE_URL"]
    warnings: list[str] = []
    settings = load_settings({}, environment, warn=warnings.append)
    assert warnings == []
    assert settings.topic_two_phase_deletion_enabled
    usage = (PROJECT / "deploy" / "spark" / "nightly.sh").read_text()
    assert all(name in usage for name in environment if not name.startswith("PULSAR_SIDECAR_"))


def test_a_service_that_ends_is_started_again_unless_it_is_to_end(services: dict[str, Any]) -> None:
    lasting = {name: service["restart"] for name, service in services.items() if "restart" in service}
    once = {"sidecar-secret", "audit", "audit-on-spark"}
    extended = set(SIDECARS)
    assert set(services) - set(lasting) == once | extended
    assert lasting.pop("pulsar-init") == "on-failure:3"
    assert set(lasting.values()) == {"unless-stopped"}
    assert yaml(PARTS / "parts.yaml")["services"]["sidecar"]["restart"] == "unless-stopped"


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
    others = [services[name]["environment"]["PULSAR_SIDECAR_LISTEN"].rpartition(":")[2] for name in SIDECARS]
    assert sorted([*ports, *others, "2181", "9090", "9091", "3000"]) == sorted(published)


def test_every_member_can_be_waited_for(services: dict[str, Any]) -> None:
    for name in COMPOSE_MEMBERS:
        assert "test" in services[name]["healthcheck"], name
    assert "test" in yaml(PARTS / "parts.yaml")["services"]["sidecar"]["healthcheck"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for {needed}"


def test_images_name_the_version_the_local_cluster_runs(services: dict[str, Any]) -> None:
    images = {service["image"] for service in services.values() if "image" in service and "profiles" not in service}
    images.add(yaml(PARTS / "parts.yaml")["services"]["secret"]["image"])
    assert images == {f"apachepulsar/pulsar:{COMPOSE_ADDRESSES.version}"}


def test_images_of_our_own_name_this_version() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    images = [service["image"] for service in yaml(PARTS / "parts.yaml")["services"].values() if "build" in service]
    assert images
    assert all(image.endswith(f":{project['version']}") for image in images)


def test_the_image_is_built_from_files_that_exist_by_a_user_who_is_not_root() -> None:
    build = yaml(PARTS / "parts.yaml")["services"]["sidecar"]["build"]
    assert (PARTS / build["context"]).resolve() / build["dockerfile"] == DOCKERFILE
    lines = DOCKERFILE.read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    for path in (path for paths in copied for path in paths):
        assert (PROJECT / path).exists(), path
        assert f"!{path}" in ignored, path
    (user,) = (line.removeprefix("USER ") for line in lines if line.startswith("USER "))
    assert f"chown {user} $$key $$token" in yaml(PARTS / "parts.yaml")["services"]["secret"]["command"][-1]
    assert any("--require-hashes" in line for line in lines)
    assert 'ENTRYPOINT ["pulsar-sidecar", "serve"]' in lines


# --- monitoring ----------------------------------------------------------------------------------------------------


def test_prometheus_takes_its_configuration_with_our_rules(tmp_path: Path) -> None:
    shutil.copy(PARTS / "prometheus.yml", tmp_path)
    shutil.copytree(PROJECT / "deploy" / "prometheus", tmp_path / "rules")
    promtool = [tool_or_skip(PROMTOOL), "check", "config", tmp_path / "prometheus.yml"]
    checked = subprocess.run(promtool, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(list((tmp_path / 'rules').glob('*.rules.yml')))} rule files found" in checked.stdout


def test_prometheus_scrapes_every_sidecar_where_it_listens(services: dict[str, Any]) -> None:
    jobs = {job["job_name"]: job for job in yaml(PARTS / "prometheus.yml")["scrape_configs"]}
    (targets,) = (each["targets"] for each in jobs["pulsar-sidecar"]["static_configs"])
    urls = [services[name]["environment"]["PULSAR_SIDECAR_ADVERTISED_URL"] for name in SIDECARS]
    assert [f"http://{target}" for target in targets] == urls
    assert jobs["pushgateway"]["honor_labels"] is True


def test_grafana_finds_prometheus_and_the_dashboards(services: dict[str, Any]) -> None:
    """No Grafana runs where these tests do: its provisioning is held to the documented form by what stands here."""
    (source,) = yaml(PARTS / "grafana" / "datasources" / "prometheus.yml")["datasources"]
    assert (source["type"], source["access"], source["isDefault"]) == ("prometheus", "proxy", True)
    assert source["url"].rpartition(":")[2] == "9090"
    provider_file = yaml(PARTS / "grafana" / "dashboards" / "pulsar-sidecar.yml")
    (provider,) = provider_file["providers"]
    assert (provider_file["apiVersion"], provider["type"]) == (1, "file")
    mounted = dict(volume.removesuffix(":ro").split(":") for volume in services["grafana"]["volumes"])
    assert mounted == {
        "./deploy/compose/grafana": "/etc/grafana/provisioning",
        "./deploy/grafana/dashboards": provider["options"]["path"],
    }
    for dashboard in (PROJECT / "deploy" / "grafana" / "dashboards").glob("*.json"):
        variables = json.loads(dashboard.read_text())["templating"]["list"]
        assert [each["query"] for each in variables if each["type"] == "datasource"] == [source["type"]], dashboard
