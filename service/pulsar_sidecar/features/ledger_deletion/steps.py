"""Steps of both phases: a crash before or after any of them must lose nothing.

Production code announces each step before and after it, and continues; a fault test stops the process right there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from pulsar_sidecar.observability.tracing import span


class Step(Enum):
    """Effects outside this process, and the reads that they rest on, in order."""

    # The first phase: a caller's records.
    RECORDS_APPENDED = "records-appended"
    # The first phase: a topic's deletion.
    OPERATION_CREATED = "operation-created"
    OPERATION_HELD = "operation-held"
    REFERENCES_GATHERED = "references-gathered"
    SIGNING_KEY_CREATED = "signing-key-created"
    RECORDS_SENT = "records-sent"
    BUCKET_PUT_BACK = "bucket-put-back"
    TOPIC_LOADED = "topic-loaded"
    BROKER_ASKED = "broker-asked"
    LEFTOVER_NODE_REMOVED = "leftover-node-removed"
    ATTEMPT_PUT_OFF = "attempt-put-off"
    OPERATION_RELEASED = "operation-released"
    OPERATION_ENDED = "operation-ended"
    NOTE_KEPT = "note-kept"
    # The first phase: a namespace's deletion, besides the steps of topics' deletions.
    NAMESPACE_PROGRESS_KEPT = "namespace-progress-kept"
    NAMESPACE_ASKED = "namespace-asked"
    NAMESPACE_NODES_REMOVED = "namespace-nodes-removed"
    # The second phase.
    BATCH_RECEIVED = "batch-received"
    FACTS_GATHERED = "facts-gathered"
    JUDGEMENT_KEPT = "judgement-kept"
    LEDGERS_DELETED = "ledgers-deleted"
    UNDER_REPLICATION_CLEARED = "under-replication-cleared"
    OFFLOADED_DELETED = "offloaded-deleted"
    RETRIES_SENT = "retries-sent"
    DEAD_LETTERS_SENT = "dead-letters-sent"
    OUTCOMES_KEPT = "outcomes-kept"
    ACKNOWLEDGED = "acknowledged"
    # The watch for leaked ledgers.
    LEAK_KEPT = "leak-kept"
    LEAKS_APPENDED = "leaks-appended"
    LEAK_FORGOTTEN = "leak-forgotten"
    # An operator's verbs.
    DEAD_LETTERS_REDRIVEN = "dead-letters-redriven"
    DEAD_LETTERS_ACKNOWLEDGED = "dead-letters-acknowledged"
    LEDGER_PROTECTED = "ledger-protected"
    LEDGER_BROUGHT_BACK = "ledger-brought-back"
    PROTECTION_ENDED = "protection-ended"


class Steps:
    """Hooks around each step, called from any thread; production's hooks do nothing."""

    def about_to(self, step: Step) -> None:
        """Run right before the step's effect."""

    def reached(self, step: Step) -> None:
        """Run right after the step's effect, unless it raised."""

    @contextmanager
    def taking(self, step: Step) -> Iterator[None]:
        """Wrap the step's effect in a span of the current trace."""
        with span(step.value):
            self.about_to(step)
            yield
            self.reached(step)
