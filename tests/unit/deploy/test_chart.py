"""The chart's output: valid in Kubernetes, consistent, without rights, with settings that the service reads."""

import json
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from pulsar_sidecar.server.gate import OPEN_PATHS
from pulsar_sidecar.settings.fields import Settings, load_settings
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT
from tests.cluster.go_tools import HELM, module_or_skip, tool_or_skip
from tests.unit.cli.running import Terminal
from tests.unit.deploy.charts import CHART, EXAMPLES, NAMESPACE, NEWEST, OLDEST, VALUES, helm_template, rendered

OPERATOR = "github.com/prometheus-operator/prometheus-operator"
OPERATOR_VERSION = "v0.85.0"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def by_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in rendered(name) if document["kind"] == kind]


def pods(name: str) -> Iterator[dict[str, Any]]:
    """Every pod that these values make, also those that Spark makes after a template."""
    for document in rendered(name):
        match document["kind"]:
            case "StatefulSet":
                yield document["spec"]["template"]["spec"]
            case "CronJob":
                yield document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            case "ConfigMap" if "executor.yaml" in document["data"]:
                yield YAML(typ="safe").load(document["data"]["executor.yaml"])["spec"]


def variables(pod: Mapping[str, Any]) -> dict[str, str]:
    """A container's environment as Kubernetes fills it in."""
    known = {"POD_NAME": "sidecar-0", "POD_NAMESPACE": NAMESPACE, "POD_IP": "10.0.0.1"}
    written = {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}
    return {name: re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text) for name, text in written.items()}


def service_settings(name: str, directory: Path) -> Settings:
    (config,) = [each for each in by_kind(name, "ConfigMap") if "sidecar.conf" in each["data"]]
    (directory / "sidecar.conf").write_text(config["data"]["sidecar.conf"])
    (stateful,) = by_kind(name, "StatefulSet")
    written = variables(stateful["spec"]["template"]["spec"])
    assert written.pop("PULSAR_SIDECAR_CONFIG") == "/pulsar-sidecar/conf/sidecar.conf"
    warnings: list[str] = []
    settings = load_settings({}, written, directory / "sidecar.conf", warnings.append)
    assert warnings == []
    return settings


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps(VALUES[name]))
    command = [tool_or_skip(HELM), "lint", "--strict", CHART, "--values", tmp_path / "values.yaml"]
    linted = subprocess.run([*command, "--kube-version", OLDEST], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", VALUES)
def test_objects_follow_the_schemas_of_kubernetes(name: str, version: str) -> None:
    for document in rendered(name):
        if not document["apiVersion"].startswith(("monitoring.coreos.com/", "operator.victoriametrics.com/")):
            kubernetes_validate.validate(document, version, strict=True)
        for text in [text for key, text in document.get("data", {}).items() if key == "executor.yaml"]:
            pod = YAML(typ="safe").load(text)
            pod["spec"]["containers"][0]["image"] = "as-spark-adds-it"
            kubernetes_validate.validate(pod, version, strict=True)


def test_the_versions_are_those_that_the_chart_takes_and_the_newest_known() -> None:
    assert YAML(typ="safe").load(CHART / "Chart.yaml")["kubeVersion"] == f">={OLDEST}-0"
    assert kubernetes_validate.latest_version() == NEWEST


def test_the_schemas_would_notice_a_misspelt_name() -> None:
    (stateful,) = by_kind("minimal", "StatefulSet")
    stateful = stateful | {"spec": stateful["spec"] | {"replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(stateful, NEWEST, strict=True)


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_objects_follow_the_schemas_of_the_prometheus_operator(kind: str) -> None:
    (document,) = by_kind("everything", kind)
    directory = module_or_skip(OPERATOR, OPERATOR_VERSION) / "example" / "prometheus-operator-crd"
    definition = YAML(typ="safe").load(directory / f"monitoring.coreos.com_{kind.lower()}s.yaml")
    (version,) = definition["spec"]["versions"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []
    assert list(Draft202012Validator(schema).iter_errors(document | {"spec": document["spec"] | {"grups": []}}))


def strict(schema: Any) -> Any:
    """Parse like the API server, which drops unknown names: they are errors here."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    checked = {name: strict(each) for name, each in schema.items()}
    if checked.pop("x-kubernetes-int-or-string", False):
        checked["type"] = ["integer", "string"]
    if "properties" in checked and checked.get("type") == "object" and checked["properties"].keys() != {"metadata"}:
        checked.setdefault("additionalProperties", False)
    return checked


@pytest.mark.parametrize("name", VALUES)
def test_every_pod_is_as_restricted_as_pod_security_knows(name: str) -> None:
    for pod in pods(name):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False, "a Service's variables begin like the settings'"
        assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= {
            "configMap",
            "secret",
            "emptyDir",
            "persistentVolumeClaim",
        }
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("name", VALUES)
def test_only_the_driver_of_spark_has_a_token_and_only_for_its_executors(name: str) -> None:
    with_token = [pod["serviceAccountName"] for pod in pods(name) if pod["automountServiceAccountToken"]]
    roles = by_kind(name, "Role")
    assert with_token == [each["subjects"][0]["name"] for each in by_kind(name, "RoleBinding")]
    assert bool(with_token) == bool(roles) == (name == "spark")
    assert [rule["resources"] for role in roles for rule in role["rules"]] == [["pods"]] * len(roles)
    for account in by_kind(name, "ServiceAccount"):
        assert account["metadata"]["name"] in with_token or account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", VALUES)
def test_mounted_and_selected_objects_exist(name: str) -> None:
    made = {(document["kind"], document["metadata"]["name"]) for document in rendered(name)}
    for pod in pods(name):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert volumes.keys() == mounts
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
            if (claim := volume.get("persistentVolumeClaim", {}).get("claimName", "mine")) != "mine":
                assert ("PersistentVolumeClaim", claim) in made
    (stateful,) = by_kind(name, "StatefulSet")
    labels = stateful["spec"]["template"]["metadata"]["labels"].items()
    assert ("Service", stateful["spec"]["serviceName"]) in made
    selectors = [each["spec"]["selector"] for each in by_kind(name, "Service")]
    for kind in ("PodDisruptionBudget", "PodMonitor", "VMPodScrape", "StatefulSet"):
        selectors += [each["spec"]["selector"]["matchLabels"] for each in by_kind(name, kind)]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in by_kind(name, "NetworkPolicy")]
    others = [
        each["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"] for each in by_kind(name, "CronJob")
    ]
    for selector in selectors:
        assert selector.items() <= labels
        assert not any(selector.items() <= other.items() for other in others)


@pytest.mark.parametrize("name", VALUES)
def test_every_file_that_a_setting_names_is_mounted(name: str) -> None:
    for pod in pods(name):
        mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        files = re.findall(r"/pulsar-sidecar/[\w/.-]+", json.dumps(pod["containers"][0].get("env", [])))
        assert all(any(file.startswith(f"{mount}/") for mount in mounts) for file in files)


@pytest.mark.parametrize("name", VALUES)
def test_the_service_takes_the_settings(name: str, tmp_path: Path) -> None:
    settings = service_settings(name, tmp_path)
    assert (settings.instance_name, settings.listen, settings.authentication_enabled) == (
        "sidecar-0",
        "0.0.0.0:8750",
        True,
    )
    scheme = "https" if VALUES[name].get("tls", {}).get("sidecar", {}).get("enabled") else "http"
    assert settings.effective_advertised_url.startswith(f"{scheme}://")


def test_settings_arrive_as_they_were_written(tmp_path: Path) -> None:
    settings = service_settings("by-issuer", tmp_path)
    assert settings.two_phase_deletion_outcome_retention_in_minutes == 1_000_000
    assert settings.ack_state_watched_topics == ("persistent://a/b/c", "persistent://a/b/back\\slash")
    assert settings.topic_two_phase_deletion_enabled
    assert settings.super_user_roles == ("admin", "operator")


def test_a_pod_is_reached_where_it_advertises_itself(tmp_path: Path) -> None:
    advertised = service_settings("minimal", tmp_path).effective_advertised_url
    (headless,) = [each for each in by_kind("minimal", "Service") if each["spec"].get("clusterIP") == "None"]
    assert advertised == f"http://sidecar-0.{headless['metadata']['name']}.{NAMESPACE}.svc.cluster.local:8750"
    assert headless["spec"]["publishNotReadyAddresses"]


def test_probes_and_metrics_ask_what_is_open_without_a_credential() -> None:
    (stateful,) = by_kind("everything", "StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    asked = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert asked == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    (monitor,) = by_kind("everything", "PodMonitor")
    paths = {*asked.values(), *(each["path"] for each in monitor["spec"]["podMetricsEndpoints"])}
    assert paths == OPEN_PATHS


def test_all_alerts_are_in_the_rule_for_as_many_sidecars_and_with_the_operators_runbooks() -> None:
    for name, kind, base, replicas in (
        ("everything", "PrometheusRule", "https://docs.example.com/sidecar", 3),
        ("beside-pulsar-chart", "VMRule", "https://pulsar-sidecar.example.org", 2),
    ):
        (rule,) = by_kind(name, kind)
        files = sorted((PROJECT / "deploy" / "prometheus").glob("*.rules.yml"))
        expected = [group for path in files for group in YAML(typ="safe").load(path)["groups"]]
        for alert in (alert for group in expected for alert in group["rules"]):
            page = alert["annotations"]["runbook_url"].rpartition("/runbooks/")[2]
            alert["annotations"]["runbook_url"] = f"{base}/runbooks/{page}"
            if alert["alert"] == "PulsarSidecarsFewerThanExpected":
                alert["expr"] = f"count by (cluster) (pulsar_sidecar_info) < {replicas}"
        assert rule["spec"]["groups"] == expected


def test_monitors_of_victoria_metrics_are_those_of_prometheus_under_its_own_names() -> None:
    (scrape,) = by_kind("victoria-metrics", "VMPodScrape")
    (endpoint,) = scrape["spec"]["podMetricsEndpoints"]
    assert scrape["apiVersion"] == "operator.victoriametrics.com/v1beta1"
    assert endpoint.pop("metricRelabelConfigs") == [{"action": "labeldrop", "regex": "cluster"}]
    assert endpoint == {
        "port": "http",
        "path": "/metrics",
        "honorLabels": True,
        "interval": "30s",
        "scrapeTimeout": "10s",
    }


def test_spark_has_what_its_driver_mounts_and_the_executors_its_directory() -> None:
    (job,) = [each for each in by_kind("spark", "CronJob") if each["metadata"]["name"].endswith("-audit")]
    driver, executor = (pod for pod in pods("spark") if pod["volumes"][0]["name"] == "audits")
    driver, executor = (driver, executor) if "serviceAccountName" in driver else (executor, driver)
    words = variables(driver)["SPARK_SUBMIT_OPTIONS"].split()
    conf = dict(word.split("=", 1) for word in words if "=" in word)
    assert conf["spark.kubernetes.container.image"] == driver["containers"][0]["image"]
    assert conf["spark.kubernetes.executor.podTemplateFile"] == "/pulsar-sidecar/scripts/executor.yaml"
    assert driver["volumes"][0] == executor["volumes"][0]
    assert driver["nodeSelector"] == executor["nodeSelector"] == {"disk": "large"}
    assert job["spec"]["concurrencyPolicy"] == "Forbid"


def test_volumes_stay_when_the_chart_goes() -> None:
    claims = [*by_kind("spark", "PersistentVolumeClaim"), *by_kind("everything", "PersistentVolumeClaim")]
    assert len(claims) == 2
    assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in claims)


def test_the_search_for_duplicates_calls_commands_with_options_that_they_have(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = [each for each in by_kind("spark", "CronJob") if each["metadata"]["name"].endswith("-duplicates")]
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    shell, options, script = container["command"]
    subprocess.run([shell, "-n", "-c", script], check=True)
    assert options == "-euc"
    calls = re.findall(r"pulsar-sidecar deduplication (\w+)((?:[^\n]|\\\n)*)", script)
    assert [name for name, _ in calls] == ["extract", "duplicates"]
    for name, rest in calls:
        about = Terminal(capsys, monkeypatch).run("deduplication", name, "--help").out
        wanted = re.findall(r"--[a-z-]+", rest)
        assert wanted
        assert all(option in about for option in wanted)


def test_the_version_is_the_projects() -> None:
    chart = YAML(typ="safe").load(CHART / "Chart.yaml")
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version


@pytest.mark.parametrize("name", VALUES)
def test_the_schema_takes_the_values(name: str) -> None:
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(VALUES[name])] == []


def test_examples_are_about_both_places() -> None:
    assert EXAMPLES.keys() == {"beside-pulsar-chart", "brokers-elsewhere"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"sidecar": {"replicas": 2}}, "'replicas' was unexpected"),
        ({"sidecar": {"configData": {"topicTwoPhaseDeletion": True}}}, "'topicTwoPhaseDeletion' was unexpected"),
        ({"sidecar": {"configData": {"instanceName": "mine"}}}, "'instanceName' was unexpected"),
        ({"sidecar": {"configData": {"adminPassThroughAuthParams": "token:secret"}}}, "does not match '^file:///'"),
        ({"sidecar": {"configData": {"logLevel": "LOUD"}}}, "is not one of"),
        ({"sidecar": {"configData": {"viewerRoles": "a\nauthParams=b"}}}, "does not match"),
        ({"sidecar": {"gracePeriod": 5}}, "less than the minimum of 30"),
        ({"audit": {"engine": "flink"}}, "is not one of"),
        ({"pulsar": {"metadataStoreUrl": "zookeeper:2181"}}, "does not match"),
        ({"auth": {"superUsers": {"client": ["admin"]}}}, "is not of type 'string'"),
        ({"sidecars": {}}, "'sidecars' was unexpected"),
    ],
)
def test_the_schema_refuses_what_would_have_no_effect(values: Mapping[str, Any], reason: str) -> None:
    (error,) = Draft7Validator(SCHEMA).iter_errors(values)
    assert reason in error.message


def test_helm_obeys_the_schema() -> None:
    answer = helm_template(json.dumps({**VALUES["minimal"], "sidecars": {}}))
    assert answer.returncode != 0
    assert "'sidecars' not allowed" in answer.stderr


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"pulsar": {}}, "pulsar.webServiceUrl: the brokers' admin REST service"),
        ({"auth": {"superUsers": {"a": "admin"}}}, "auth.authentication.jwt.secretName: the Secret with the key"),
        ({"auth": {"authentication": {"jwt": {"enabled": False}}}}, "needs a way to verify callers"),
        ({"auth": {"authentication": {"jwt": {"secretName": "key"}}}}, "auth.superUsers: the roles"),
        ({"tls": {"broker": {"enabled": True}}}, "tls.broker.caSecretName: the Secret with ca.crt"),
        ({"tls": {"sidecar": {"enabled": True}}}, "tls.sidecar.secretName: the Secret with tls.crt and tls.key"),
        (
            {"sidecar": {"configData": {"listenTlsRequireTrustedClientCertOnConnect": True}}},
            "refuses Kubernetes' probes, which show no certificate",
        ),
        ({"duplicates": {"enabled": True}}, "duplicates.scope: a tenant, a namespace or a topic"),
    ],
)
def test_missing_and_invalid_values_are_named(values: Mapping[str, Any], reason: str) -> None:
    answer = helm_template(json.dumps({**VALUES["minimal"], **values}))
    assert answer.returncode != 0
    assert reason in answer.stderr


def test_a_package_has_the_scripts_and_the_alerts_themselves(tmp_path: Path) -> None:
    command = [tool_or_skip(HELM), "package", CHART, "--destination", tmp_path]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        files = {member.name: member for member in archive.getmembers()}
        script = archive.extractfile(files["pulsar-sidecar/files/nightly.sh"])
        assert script is not None
        assert script.read() == (PROJECT / "deploy" / "spark" / "nightly.sh").read_bytes()
    assert "pulsar-sidecar/files/rules/audit.rules.yml" in files
    assert all(member.isfile() for member in files.values())
