"""Findings of the last audit of each cluster."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import BLUE, GREEN, ORANGE, RED, Panel, board, figure, lines, states, variable
from deploy.grafana.queries import ALARMING, AUDIT, NO_AUDIT, largest


def audits() -> Dashboard:
    return board(
        "pulsar-sidecar-audits",
        "Pulsar sidecar: audits",
        "What the last audit of each cluster found, from its metrics.prom.",
        [variable("cluster", "Cluster", f"{AUDIT}_timestamp_seconds")],
        {"Findings": _FINDINGS, "Unreferenced ledgers": _ORPHANS, "Data quality": _TRUST},
    )


def _query(name: str, *by: str) -> str:
    return largest(f"{AUDIT}_{name}", "cluster", *by)


def _found(name: str, *by: str) -> Mapping[str, str]:
    return {", ".join(f"{{{{{label}}}}}" for label in ("cluster", *by)): _query(name, *by)}


_figure_of_audits = partial(figure, empty=NO_AUDIT)
_lines_of_audits, _states_of_audits = partial(lines, empty=NO_AUDIT), partial(states, empty=NO_AUDIT)
_lines_of_orphans = partial(lines, empty="no audit found an unreferenced ledger", stacked=True)

_FINDINGS: Final[Sequence[Panel]] = [
    _figure_of_audits(
        "Last audit",
        "Time since the state that the audit saw.",
        {"{{cluster}}": f"time() - {_query('timestamp_seconds')}"},
        unit="s",
        limits={86_400: ORANGE, 172_800: RED},
    ),
    _figure_of_audits(
        "Missing",
        "References to ledgers that do not exist: data is lost or unreadable.",
        _found("missing_ledger_references"),
        limits=ALARMING,
    ),
    _figure_of_audits(
        "Waiting for approval",
        "Ledgers in the plan. `audit apply` hands them to the sidecar.",
        _found("plan_ledgers"),
        limits={1: BLUE},
    ),
    _figure_of_audits(
        "Unattributed",
        "Unreferenced ledgers whose owner is not known; no plan includes them.",
        _found("unattributed_ledgers"),
        limits={1: ORANGE},
    ),
    _figure_of_audits(
        "Dangerous topics",
        "Topics whose own clean-up may delete other topics' ledgers.",
        _found("dangers"),
        limits=ALARMING,
    ),
    _figure_of_audits("Ledgers", "Ledgers that exist.", _found("ledgers")),
    _lines_of_audits("Bytes of all ledgers", "Excludes ledgers of unknown size.", _found("ledger_bytes"), unit="bytes"),
    _lines_of_audits("Ledgers of unknown size", "Mostly open ledgers.", _found("unknown_size_ledgers")),
]

_ORPHANS: Final[Sequence[Panel]] = [
    _lines_of_orphans(
        "By status",
        "Deletable ones are in the plan; the others are too young, protected, or were seen by one audit only.",
        _found("orphan_ledgers", "standing"),
    ),
    _lines_of_orphans(
        "Bytes by status",
        "By status; excludes ledgers of unknown size.",
        _found("orphan_bytes", "standing"),
        unit="bytes",
    ),
    _lines_of_orphans("By kind", "By what they belonged to.", _found("orphan_ledgers_by_kind", "kind")),
    _lines_of_orphans(
        "By likely cause", "By how they lost their last reference.", _found("orphan_ledgers_by_cause", "cause")
    ),
]

_TRUST: Final[Sequence[Panel]] = [
    _states_of_audits(
        "Guards",
        "A plan of an audit with a failed guard cannot be applied.",
        _found("guard_passed", "guard"),
        names={0: ("failed", RED), 1: ("passed", GREEN)},
    ),
    lines("Inputs that could not be read", "By kind.", _found("unseen", "what"), empty="everything could be read"),
    lines(
        "Nodes that point to nothing",
        "By kind; the report of the audit lists them with the command that helps.",
        _found("leftover_nodes", "kind"),
        empty="the audit did not look for them, or found none",
    ),
]
