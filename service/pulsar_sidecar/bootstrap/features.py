"""The list of the service's features, which no other module of the process names one by one.

To add a feature, add its folder, an entry in `FEATURES`, its commands in `bootstrap.commands`, and, if it has a page, a
line in `PAGES`.
"""

from typing import Final

from pulsar_sidecar.features.acknowledgements import opening as acknowledgements
from pulsar_sidecar.features.acknowledgements import pages as subscriptions
from pulsar_sidecar.features.audit import opening as audit
from pulsar_sidecar.features.audit import pages as audits
from pulsar_sidecar.features.deduplication import opening as deduplication
from pulsar_sidecar.features.deduplication import pages as deduplicating
from pulsar_sidecar.features.delayed_index import opening as delayed_index
from pulsar_sidecar.features.delayed_index import pages as delayed
from pulsar_sidecar.features.delayed_messages import opening as delayed_messages
from pulsar_sidecar.features.delayed_messages import pages as cancelling
from pulsar_sidecar.features.ledger_deletion import opening as ledger_deletion
from pulsar_sidecar.features.ledger_deletion.pages import deletions, leaks, records
from pulsar_sidecar.features.ledger_deletion.pages import overview as of_ledger_deletion
from pulsar_sidecar.features.pins import opening as pins
from pulsar_sidecar.features.pins import pages as pinned
from pulsar_sidecar.features.rehearsal import opening as rehearsal
from pulsar_sidecar.features.rehearsal import pages as restarts
from pulsar_sidecar.web.pages import Page, overview

FEATURES: Final = (
    ledger_deletion.ENTRY,
    delayed_messages.ENTRY,
    acknowledgements.ENTRY,
    delayed_index.ENTRY,
    deduplication.ENTRY,
    audit.ENTRY,
    pins.ENTRY,
    rehearsal.ENTRY,
)
PAGES: Final = (
    Page("/ui/", "Overview", overview.router),
    Page(
        deletions.HERE,
        "Deletions",
        deletions.router,
        [records.router],
        [of_ledger_deletion.DELETION],
    ),
    Page(leaks.PATH, "Leaks", leaks.router, (), [of_ledger_deletion.WATCH]),
    Page(audits.PATH, "Audits", audits.router, (), [audits.OVERVIEW]),
    Page(delayed.PATH, "Delayed messages", delayed.router, [cancelling.router], [cancelling.OVERVIEW]),
    Page(subscriptions.PATH, "Subscriptions", subscriptions.router),
    Page(deduplicating.PATH, "Deduplication", deduplicating.router),
    Page(pinned.PATH, "What pins this?", pinned.router),
    Page(restarts.PATH, "Before a restart", restarts.router),
)
"""The dashboard's pages in the order of the navigation, each for one question."""
