"""The bookies that the metadata store knows are counted, or it is said that they are not known."""

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.ownership.registrations import describe_registered

from tests.fakes.metadata import FakeMetadataStore


def test_bookies_that_are_read_only_or_down_do_not_count_as_writable() -> None:
    store = FakeMetadataStore()
    for path in ("available/a:3181", "available/readonly/b:3181", "cookies/a:3181", "cookies/b:3181", "cookies/c:3181"):
        store.put(f"/ledgers/{path}")
    assert "registered as writable: 1 of 3 " in describe_registered(store, "/ledgers")


def test_a_failed_look_says_that_nothing_is_known() -> None:
    store = FakeMetadataStore()
    store.fail_next("children_many", TemporaryError("no session"))
    assert describe_registered(store, "/ledgers") == "which bookies are registered is not known"
