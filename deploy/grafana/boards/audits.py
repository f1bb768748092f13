"""What the last audit of each cluster found."""

from collections.abc import Sequence
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
        {"Findings": _FINDINGS, "Unreferenced ledgers": _ORPHANS, "What may be trusted": _TRUST},
    )


def _found(name: str, *by: str) -> str:
    return largest(f"{AUDIT}_{name}", "cluster", *by)


_FINDINGS: Final[Sequence[Panel]] = [
    figure(
        "Last audit",
        "Time since the state that it saw.",
        {"{{cluster}}": f"time() - {_found('timestamp_seconds')}"},
        empty=NO_AUDIT,
        unit="s",
        limits={86_400: ORANGE, 172_800: RED},
    ),
    figure(
        "Missing",
        "References to ledgers that do not exist: data is lost or unreadable.",
        {"{{cluster}}": _found("missing_ledger_references")},
        empty=NO_AUDIT,
        limits=ALARMING,
    ),
    figure(
        "Waiting for approval",
        "Ledgers in the plan. `audit apply` hands them to the sidecar.",
        {"{{cluster}}": _found("plan_ledgers")},
        empty=NO_AUDIT,
        limits={1: BLUE},
    ),
    figure(
        "Unattributed",
        "Unreferenced ledgers whose owner is not known; no plan has them.",
        {"{{cluster}}": _found("unattributed_ledgers")},
        empty=NO_AUDIT,
        limits={1: ORANGE},
    ),
    figure(
        "Dangerous topics",
        "Topics whose own clean-up may delete other topics' ledgers.",
        {"{{cluster}}": _found("dangers")},
        empty=NO_AUDIT,
        limits=ALARMING,
    ),
    figure(
        "Ledgers",
        "That exist.",
        {"{{cluster}}": _found("ledgers")},
        empty=NO_AUDIT,
    ),
    lines(
        "Bytes of all ledgers",
        "Without ledgers of unknown size.",
        {"{{cluster}}": _found("ledger_bytes")},
        empty=NO_AUDIT,
        unit="bytes",
    ),
    lines(
        "Ledgers of unknown size",
        "Mostly those that are open.",
        {"{{cluster}}": _found("unknown_size_ledgers")},
        empty=NO_AUDIT,
    ),
]

_ORPHANS: Final[Sequence[Panel]] = [
    lines(
        "By status",
        "Deletable ones are in the plan; the others are too young, protected, or were seen by one audit only.",
        {"{{cluster}}, {{standing}}": _found("orphan_ledgers", "standing")},
        empty="no audit found an unreferenced ledger",
        stacked=True,
    ),
    lines(
        "Their bytes",
        "By status, without ledgers of unknown size.",
        {"{{cluster}}, {{standing}}": _found("orphan_bytes", "standing")},
        empty="no audit found an unreferenced ledger",
        unit="bytes",
        stacked=True,
    ),
    lines(
        "By kind",
        "What they belonged to.",
        {"{{cluster}}, {{kind}}": _found("orphan_ledgers_by_kind", "kind")},
        empty="no audit found an unreferenced ledger",
        stacked=True,
    ),
    lines(
        "By likely cause",
        "By what they lost their last reference.",
        {"{{cluster}}, {{cause}}": _found("orphan_ledgers_by_cause", "cause")},
        empty="no audit found an unreferenced ledger",
        stacked=True,
    ),
]

_TRUST: Final[Sequence[Panel]] = [
    states(
        "Guards",
        "A plan of an audit with a failed guard cannot be applied.",
        {"{{cluster}}, {{guard}}": _found("guard_passed", "guard")},
        empty=NO_AUDIT,
        names={0: ("failed", RED), 1: ("passed", GREEN)},
    ),
    lines(
        "Inputs that could not be read",
        "By what they are.",
        {"{{cluster}}, {{what}}": _found("unseen", "what")},
        empty="everything could be read",
    ),
    lines(
        "Nodes that point to nothing",
        "By kind; the report of the audit lists them with the command that helps.",
        {"{{cluster}}, {{kind}}": _found("leftover_nodes", "kind")},
        empty="the audit did not look for them, or found none",
    ),
]
