"""The command line of the features' commands and the common ones.

Invariant: ``--help`` imports no client, no server and no settings; a command imports them when it runs.
"""

from typing import Final

from typer.core import TyperGroup

from pulsar_sidecar.cli import app
from pulsar_sidecar.cli.command_groups import LazyCommand
from pulsar_sidecar.cli.shared_groups import deduplication_app, namespaces_app, topics_app
from pulsar_sidecar.features.acknowledgements import cli as acknowledgements
from pulsar_sidecar.features.audit.cli import audit, sources
from pulsar_sidecar.features.deduplication.cli import health, policies
from pulsar_sidecar.features.deduplication.cli import show as deduplication
from pulsar_sidecar.features.delayed_index.cli import checks, planning, waiting
from pulsar_sidecar.features.delayed_index.cli import show as delayed_index
from pulsar_sidecar.features.delayed_messages.cli import delayed_messages
from pulsar_sidecar.features.duplicates import cli as duplicates
from pulsar_sidecar.features.ledger_deletion.cli import ledger_deletion, topics
from pulsar_sidecar.features.pins.cli import pins, retention
from pulsar_sidecar.features.rehearsal import cli as rehearsal

_COMMANDS: Final = "pulsar_sidecar.cli.commands"
_FEATURES: Final = "pulsar_sidecar.features"
_IMPORTED_LATER: Final = (
    LazyCommand("serve", "Run the sidecar until a signal stops it.", f"{_COMMANDS}.serving:app"),
    LazyCommand(
        "doctor", "Check that the cluster meets the sidecar's requirements.", f"{_FEATURES}.doctor.cli:app", True
    ),
    LazyCommand(
        "drained",
        "Show what would be left undone if the sidecars were removed now.",
        "pulsar_sidecar.bootstrap.drained:app",
        True,
    ),
    LazyCommand("whoami", "Show your role and your rights on the sidecar.", f"{_COMMANDS}.whoami:app", True),
    LazyCommand(
        "local-cluster", "Start, break and take down a real Pulsar cluster here.", f"{_COMMANDS}.local_cluster:app"
    ),
    LazyCommand("demo", "Demonstrate the sidecar on a real cluster.", f"{_COMMANDS}.local_cluster:demo_app"),
    LazyCommand(
        "publish", "Publish a file's records, each exactly once and in order.", f"{_FEATURES}.publishing.cli:app", True
    ),
    LazyCommand("completion", "Print a script by which a shell completes commands.", f"{_COMMANDS}.completion:app"),
)
_ADDING_TO_SHARED_GROUPS: Final = (
    deduplication,
    delayed_messages,
    *(health, policies, duplicates),
    *(checks, planning, waiting),
    *(acknowledgements, topics),
)
"""Modules that, once imported, add their commands to another module's group."""


def command_line() -> TyperGroup:
    """Return the whole command line, with groups in the order in which a newcomer needs them.

    A call takes the `Programs` that its commands run as ``obj``.
    """
    return app.command_line(
        _IMPORTED_LATER,
        (
            ledger_deletion.app,
            topics_app,
            delayed_index.app,
            deduplication_app,
            ledger_deletion.broker_stats_app,
            sources.metadata_app,
            sources.ledgers_app,
            sources.offload_app,
            audit.app,
            namespaces_app,
            acknowledgements.app,
            pins.app,
            retention.app,
            rehearsal.app,
        ),
    )
