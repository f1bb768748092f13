"""Pause and rate, which all sidecars share, and the registry of sidecars."""

import itertools
import json
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.control import CONTROL, INSTANCES, ServiceControl, SidecarRegistry
from pulsar_sidecar.features.ledger_deletion.results import Control, SidecarInstance
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, OutcomeUnknownError, TemporaryError

from tests.fakes.metadata import FakeMetadataStore

OWN = SidecarInstance("sidecar-1", "http://127.0.0.1:8750", "http://127.0.0.1:8080", 5)


# --- pause and rate -------------------------------------------------------------------------------------------------


def test_without_a_node_everything_runs(store: FakeMetadataStore) -> None:
    assert ServiceControl(store).read() == Control()


def test_every_sidecar_sees_the_same_control(store: FakeMetadataStore) -> None:
    one, two = ServiceControl(store), ServiceControl(store.other_session())
    paused = Control(True, "maintenance", None, "ops", store.now_ms())
    assert one.pause("maintenance", "ops") == paused
    assert two.limit_rate(2.5) == replace(paused, rate_per_second=2.5)
    assert one.read() == two.read()
    assert two.resume() == Control(rate_per_second=2.5)
    assert one.limit_rate(None) == Control() == two.read()


def test_a_change_in_between_is_not_overwritten(store: FakeMetadataStore) -> None:
    other = ServiceControl(store.other_session())
    store.before("create", lambda: other.limit_rate(7.0) and None)
    assert ServiceControl(store).pause("now") == Control(True, "now", 7.0, None, store.now_ms())
    store.before("write", lambda: other.limit_rate(8.0) and None)
    assert ServiceControl(store).resume() == Control(rate_per_second=8.0)


def test_a_node_that_vanishes_in_between_is_made_again(store: FakeMetadataStore) -> None:
    control = ServiceControl(store)
    control.pause("x")
    store.before("write", lambda: store.remove(CONTROL))
    assert control.limit_rate(3) == Control(rate_per_second=3)


def test_others_that_never_stop_are_a_temporary_failure(store: FakeMetadataStore) -> None:
    other = ServiceControl(store.other_session())
    other.pause("x")
    rates = itertools.count(1)
    store.before("write", lambda: other.limit_rate(next(rates)) and None, times=-1)
    with pytest.raises(TemporaryError, match="again"):
        ServiceControl(store).resume()


def test_a_lost_answer_is_passed_on(store: FakeMetadataStore) -> None:
    store.lose_answer_next("create", applied=True)
    with pytest.raises(OutcomeUnknownError):
        ServiceControl(store).pause("x")
    assert ServiceControl(store).read().paused


@pytest.mark.parametrize(
    "rate", [0, -1, float("nan"), float("inf"), -0.0, 1e-300, 10**400, True, "5"], ids=lambda rate: repr(rate)[:8]
)
def test_invalid_rate_is_refused_and_changes_nothing(store: FakeMetadataStore, rate: float) -> None:
    with pytest.raises(InvalidInputError):
        ServiceControl(store).limit_rate(rate)
    assert store.peek(CONTROL) is None


GOOD = {"paused": False, "pausedReason": None, "ratePerSecond": None}


def test_control_node_of_an_earlier_version_is_read(store: FakeMetadataStore) -> None:
    store.put(CONTROL, json.dumps(GOOD | {"paused": True}).encode())
    assert ServiceControl(store).read() == Control(paused=True)


@pytest.mark.parametrize(
    "document",
    [
        GOOD | {"paused": "no"},
        GOOD | {"paused": 0},
        GOOD | {"pausedReason": 5},
        GOOD | {"ratePerSecond": "5"},
        GOOD | {"ratePerSecond": 0},
        GOOD | {"ratePerSecond": -1},
        GOOD | {"ratePerSecond": True},
        GOOD | {"ratePerSecond": float("nan")},
        GOOD | {"ratePerSecond": 10**400},
        {},
        [],
        7,
        None,
    ],
    ids=lambda document: repr(document)[-60:],
)
def test_a_control_that_cannot_be_read_mean_paused(store: FakeMetadataStore, document: object) -> None:
    store.put(CONTROL, json.dumps(document).encode())
    control = ServiceControl(store).read()
    assert control.paused
    assert CONTROL in (control.paused_reason or "")
    assert control.rate_per_second is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_control_mean_paused_until_resumed(store: FakeMetadataStore, data: bytes) -> None:
    store.put(CONTROL, data)
    control = ServiceControl(store)
    assert control.read().paused
    assert control.resume() == Control() == control.read()


# --- registry ----------------------------------------------------------------------------------------------------


def test_every_sidecar_lists_all_live_sidecars(store: FakeMetadataStore) -> None:
    second = SidecarInstance("sidecar-2", "http://127.0.0.1:8751", None, 6)
    SidecarRegistry(store, OWN).keep()
    other = SidecarRegistry(store.other_session(), second)
    other.keep()
    assert other.instances() == (OWN, second)


def test_a_session_that_ends_takes_the_registration_along_and_it_is_renewed(store: FakeMetadataStore) -> None:
    registry = SidecarRegistry(store, OWN)
    registry.keep()
    registry.keep()
    store.end_session()
    assert registry.instances() == ()
    registry.keep()
    assert registry.instances() == (OWN,)


def test_another_sidecar_of_the_same_name_is_a_conflict(store: FakeMetadataStore) -> None:
    SidecarRegistry(store, OWN).keep()
    twin = SidecarInstance(OWN.name, OWN.advertised_url, OWN.broker_url, OWN.started_ms + 1)
    with pytest.raises(ConflictError, match="instanceName"):
        SidecarRegistry(store.other_session(), twin).keep()


def test_a_registration_made_in_between_is_looked_at_next_time(store: FakeMetadataStore) -> None:
    other = store.other_session()
    twin = SidecarInstance(OWN.name, "http://10.0.0.1:8750", None, 9)
    store.before("create", lambda: SidecarRegistry(other, twin).keep())
    registry = SidecarRegistry(store, OWN)
    registry.keep()
    with pytest.raises(ConflictError):
        registry.keep()


def test_leaving(store: FakeMetadataStore) -> None:
    registry = SidecarRegistry(store, OWN)
    registry.keep()
    registry.withdraw()
    registry.withdraw()
    assert registry.instances() == ()


def test_a_sidecar_that_leaves_takes_no_other_ones_registration_along(store: FakeMetadataStore) -> None:
    SidecarRegistry(store, OWN).keep()
    twin = SidecarRegistry(store.other_session(), SidecarInstance(OWN.name, "http://10.0.0.1:8750", None, 9))
    with pytest.raises(ConflictError):
        twin.keep()
    twin.withdraw()
    assert twin.instances() == (OWN,)


def test_a_sidecar_that_never_registered_leaves_without_asking_the_store(store: FakeMetadataStore) -> None:
    for call in ("read", "delete"):
        store.before(call, pytest.fail)
    SidecarRegistry(store, OWN).withdraw()


def test_sidecar_that_leaves_during_the_listing_is_omitted(store: FakeMetadataStore) -> None:
    SidecarRegistry(store, OWN).keep()
    store.before("read_many", lambda: store.remove(f"{INSTANCES}/{OWN.name}"))
    assert SidecarRegistry(store, OWN).instances() == ()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_a_registration_of_another_version_does_no_harm(store: FakeMetadataStore, data: bytes) -> None:
    store.put(f"{INSTANCES}/strange", data)
    SidecarRegistry(store, OWN).keep()
    found = SidecarRegistry(store, OWN).instances()
    assert OWN in found
    assert [instance.broker_url for instance in found if instance != OWN] == [None]
