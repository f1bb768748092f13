"""Every alert is about metrics that exist, and leads to a page that names it."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.alerts.rules import RULES
from tests.cluster.choosing import PROJECT
from tests.unit.deploy.reported import reported

RUNBOOKS = PROJECT / "docs" / "runbooks"
SITE = "https://pulsar-sidecar.example.org/"
_MATCHED = re.compile(r"(\w+)([!=]~?)\"([^\"]+)\"")
_OF_PROMETHEUS = {"job"}
"""Labels that Prometheus adds."""


def selectors(expression: str) -> Sequence[tuple[str, str]]:
    """Each metric with the text between its braces."""
    return re.findall(r"\b((?:pulsar|process)_\w+)(?:\{([^}]*)\})?", expression)


@pytest.mark.parametrize("alert", RULES)
def test_a_query_names_metrics_and_labels_that_are_reported(alert: str) -> None:
    expression = str(RULES[alert]["expr"])
    assert selectors(expression) or "up{" in expression
    for metric, matchers in selectors(expression):
        assert metric in reported(), metric
        for label, operator, values in _MATCHED.findall(matchers or ""):
            if label not in _OF_PROMETHEUS and "!" not in operator:
                assert set(values.split("|")) <= reported()[metric][label], (metric, label)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_leads_to_a_page_that_names_it(alert: str) -> None:
    annotations: dict[str, Any] = RULES[alert]["annotations"]
    assert annotations["summary"]
    assert annotations["description"]
    page = re.fullmatch(re.escape(SITE) + r"runbooks/([\w-]+)\.html", annotations["runbook_url"])
    assert page is not None, annotations["runbook_url"]
    text = (RUNBOOKS / f"{page[1]}.md").read_text(encoding="utf-8")
    assert f"`{alert}`" in text.partition("\n## ")[0]
    assert page[1] in (RUNBOOKS / "index.md").read_text(encoding="utf-8").splitlines()


def test_pages_name_no_alert_that_does_not_exist() -> None:
    for page in RUNBOOKS.glob("*.md"):
        for alert in re.findall(r"`(Pulsar[A-Z]\w+)`", page.read_text(encoding="utf-8")):
            assert alert in RULES, (page.name, alert)


def test_every_part_of_the_sidecar_has_alerts() -> None:
    queries = " ".join(str(rule["expr"]) for rule in RULES.values())
    for prefix in (
        "pulsar_sidecar_ready",
        "pulsar_ledger_deletion_oldest",
        "pulsar_ledger_deletion_watch",
        "pulsar_delayed_message_cancellations",
        "pulsar_sidecar_audit",
        "pulsar_subscription_ack_state",
        "pulsar_sidecar_delayed_message_index",
        "pulsar_sidecar_deduplication",
    ):
        assert prefix in queries
