"""Audits in a directory as a sidecar serves them, and a sender of their plans that a test controls."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pulsar_sidecar.bootstrap.audit_review import BegunApplication
from pulsar_sidecar.bootstrap.audit_service import AuditReviews, PlanSending
from pulsar_sidecar.features.audit import applying
from pulsar_sidecar.features.audit.plan_progress import advance
from pulsar_sidecar.model.clocks import Pace, StopSignal
from pulsar_sidecar.model.progress import ReportCount
from pulsar_sidecar.ownership.paths import instance_id_path

from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.audit.findings import INSTANCE_ID, STORE_TIME_MS


class ServedAudits:
    """Audits below a directory; ``go_on`` lets the next row of a plan be sent, ``failure`` is raised instead."""

    def __init__(self, directory: Path, threads: ThreadPoolExecutor) -> None:
        self.directory = directory
        self.store = FakeMetadataStore()
        self.store.advance_ms(STORE_TIME_MS - self.store.now_ms())
        self.store.put(instance_id_path("/ledgers"), INSTANCE_ID.encode())
        self.go_on = threading.Event()
        self.go_on.set()
        self.failure: Exception | None = None
        self.plans: list[str] = []
        self.sending = PlanSending(self.store, FakeClock(), threads, self._send)
        self.reviews = AuditReviews(directory, self.sending, deletes=True)

    def _send(
        self, begun: BegunApplication, batches: applying.Batches, pace: Pace, report: ReportCount, stop: StopSignal
    ) -> applying.SentRows:
        assert sum(batch.num_rows for batch in batches()) == begun.plan.rows
        self.plans.append(begun.plan.sha256)
        held = begun.held
        for done in range(held.progress.done_rows, begun.plan.rows):
            report(done, begun.plan.rows)
            assert self.go_on.wait(20)
            if self.failure is not None:
                raise self.failure
            held = advance(self.store, begun.plan.sha256, held, done + 1, 0)
        return applying.SentRows(begun.plan.rows)


@contextmanager
def served_audits(directory: Path) -> Iterator[ServedAudits]:
    with ThreadPoolExecutor(1) as threads:
        audits = ServedAudits(directory, threads)
        yield audits
        audits.go_on.set()
        audits.sending.close()
