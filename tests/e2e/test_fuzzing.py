"""schemathesis against a real sidecar beside a real cluster; `tests/contract/test_openapi_fuzzing.py` tries more.

Nothing that other tests need is at stake: no generated name is one of a topic, redriving and undeleting are called with
what must be refused only, and the settings are restored.
"""

from tests.cluster.deletion import Scene
from tests.fuzzing.running import fuzz

REPAIRS = ("/admin/v2/ledger-deletion/dead-letters/redrive", "/admin/v2/ledger-deletion/undelete")
EXISTING_OR_NOT = "--exclude-checks=EveryOperationSucceeds"
"""Topics and ledgers of the document's examples do not exist, so their deletions cannot succeed."""
GENERATED = "--phases=examples,fuzzing"
"""The boundaries of every parameter (phase ``coverage``, hundreds of calls) are tried on the fake."""


def test_every_operation_of_a_real_sidecar(scene: Scene) -> None:
    sidecar = scene.sidecar
    try:
        fuzz(sidecar.url, seed=7, most_examples=2, without=REPAIRS, options=(EXISTING_OR_NOT, GENERATED))
        fuzz(sidecar.url, seed=8, most_examples=3, only=REPAIRS, options=(EXISTING_OR_NOT, "--mode=negative"))
    finally:
        sidecar.call("POST", "/admin/v2/ledger-deletion/resume")
        sidecar.call("PUT", "/admin/v2/ledger-deletion/rate", {"ledgersPerSecond": None})
    assert sidecar.is_running
    # Records of the tests before this one may have been postponed; an unforeseen failure is another thing.
    assert "unexpected" not in (sidecar.status()["lastError"] or "")
    # It still does its work, and what was appended comes to its end (the oracles wait for it).
    left = scene.orphans(scene.topic("after-the-storm"), 2)
    scene.append(sidecar, left.records())
    scene.oracles.wait_for_finals(left.data)
    assert not scene.workload.existing(left.data)
