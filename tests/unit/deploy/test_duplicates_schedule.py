"""The weekly look for duplicates on Kubernetes: manifests follow their schemas and call commands that there are."""

import json
import re
import subprocess
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT
from tests.unit.deploy.test_audit_schedules import schema_errors

_DIRECTORY = PROJECT / "deploy" / "duplicates"
_RESOURCES = YAML(typ="safe").load(_DIRECTORY / "kustomization.yaml")["resources"]
_DOCUMENTS = [document for name in _RESOURCES for document in YAML(typ="safe").load_all(_DIRECTORY / name)]


@pytest.mark.parametrize("document", _DOCUMENTS, ids=[document["kind"] for document in _DOCUMENTS])
def test_manifests_follow_their_schemas(document: dict[str, Any]) -> None:
    assert schema_errors(document) == []


def test_they_fit_together_and_nothing_runs_as_root() -> None:
    job, claim = _DOCUMENTS
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert re.findall(r'"claimName": "([^"]+)"', json.dumps(job)) == [claim["metadata"]["name"]]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert f"--tag {container['image']} ." in (PROJECT / "deploy" / "Dockerfile").read_text()


def test_the_script_is_one_and_calls_commands_with_options_that_they_have() -> None:
    (container,) = _DOCUMENTS[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    shell, options, script = container["command"]
    subprocess.run([shell, "-n", "-c", script], check=True)
    assert options == "-euc"
    reference = (PROJECT / "docs" / "reference" / "cli.md").read_text()
    calls = re.findall(r"pulsar-sidecar deduplication (\w+)((?:[^\n]|\\\n)*)", script)
    assert [name for name, _ in calls] == ["extract", "duplicates"]
    for name, rest in calls:
        (about,) = re.findall(rf"\n#### pulsar-sidecar deduplication {name}\n(.*?)\n####? ", reference, re.DOTALL)
        wanted = re.findall(r"--[a-z-]+", rest)
        assert wanted
        assert all(option in about for option in wanted)
