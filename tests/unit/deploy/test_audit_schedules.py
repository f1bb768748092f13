"""Nightly audits: images that fit the chart's version, and an alert when none does."""

import re
import tomllib

from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT

SPARK = PROJECT / "deploy" / "spark"
RULES = PROJECT / "deploy" / "prometheus" / "audit.rules.yml"


def test_the_recipes_build_the_images_that_the_chart_names() -> None:
    images = YAML(typ="safe").load(PROJECT / "deploy" / "helm" / "pulsar-sidecar" / "values.yaml")["images"]
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    recipes = (PROJECT / "deploy" / "Dockerfile").read_text() + (SPARK / "Dockerfile").read_text()
    built = set(re.findall(r"--tag (\S+)", recipes))
    assert {f"{images[name]['repository']}:{version}" for name in ("sidecar", "audit", "spark")} == built


def test_an_audit_that_did_not_run_is_noticed() -> None:
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    (overdue,) = [rule["expr"] for rule in group["rules"] if rule["alert"] == "PulsarLedgerAuditOverdue"]
    named = "pulsar_sidecar_audit_timestamp_seconds"
    assert overdue == f"time() - max by (cluster) ({named}) > 2 * 86400 or absent({named})"
