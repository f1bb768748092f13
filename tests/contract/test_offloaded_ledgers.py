"""Deletions and checks of copies in tiered storage, in the fake, a directory, and servers of S3, GCS and Azure."""

from dataclasses import replace
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadSegment
from pulsar_sidecar.model.names import ManagedLedgerName

from tests.contract.offload_storages import DirectoryStorage, FakeStorage, OffloadStorage

LEDGER = LedgerId(5)
ORDERS = ManagedLedgerName("public/default/persistent/orders%2F2026+eu-partition-0")
MSB, LSB = -2_126_243_137_049_270_631, 0x4123_4567_89AB_CDEF


@pytest.fixture(params=["fake", "s3", "gcs", "azure", "directory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> OffloadStorage:
    if request.param == "fake":
        return FakeStorage()
    if request.param == "directory":
        return DirectoryStorage(tmp_path / "base")
    bucket: OffloadStorage = request.getfixturevalue(f"{request.param}_bucket")
    return bucket


def test_our_s3_server_takes_every_signature_of_the_second_version(s3_endpoint: str) -> None:
    signed = {"Authorization": "AWS an-id:fuQ/q1/WwUZ/gsps+0/c="}
    assert requests.get(f"{s3_endpoint}/no-such-bucket", headers=signed, timeout=10).status_code == 404


def test_a_copy_is_deleted_whole(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)
    assert storage.parts(LEDGER, context, ORDERS) == {"data", "index"}

    assert storage.ledgers.delete_offloaded(LEDGER, context, ORDERS) is OffloadDeletion.DELETED

    assert storage.parts(LEDGER, context, ORDERS) == set()


def test_deleting_again_finds_nothing(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)
    storage.ledgers.delete_offloaded(LEDGER, context, ORDERS)

    assert storage.ledgers.delete_offloaded(LEDGER, context, ORDERS) is OffloadDeletion.GONE


def test_a_copy_that_never_was_is_gone(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    assert storage.ledgers.delete_offloaded(LEDGER, context, ORDERS) is OffloadDeletion.GONE


@pytest.mark.parametrize("part", ["data", "index"])
def test_half_a_copy_is_deleted(storage: OffloadStorage, part: str) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS, [part])

    assert storage.ledgers.delete_offloaded(LEDGER, context, ORDERS) is OffloadDeletion.DELETED

    assert storage.parts(LEDGER, context, ORDERS) == set()


def test_other_copies_stay(storage: OffloadStorage) -> None:
    context, other_attempt = storage.context(MSB, LSB), storage.context(MSB, LSB + 1)
    other_ledger = LedgerId(51)
    storage.put(LEDGER, context, ORDERS)
    storage.put(LEDGER, other_attempt, ORDERS)
    storage.put(other_ledger, context, ORDERS)

    storage.ledgers.delete_offloaded(LEDGER, context, ORDERS)

    assert storage.parts(LEDGER, other_attempt, ORDERS) == {"data", "index"}
    assert storage.parts(other_ledger, context, ORDERS) == {"data", "index"}


def test_what_another_client_wrote_stays(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put_foreign(LEDGER, context, ORDERS)

    with pytest.raises(PermanentError):
        storage.ledgers.delete_offloaded(LEDGER, context, ORDERS)

    assert storage.parts(LEDGER, context, ORDERS) == {"data", "index"}


def test_a_place_that_is_not_allowed_is_not_touched(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)

    with pytest.raises(PermanentError, match="offloadAllowedLocations"):
        storage.ledgers.delete_offloaded(LEDGER, storage.elsewhere(context), ORDERS)

    assert storage.parts(LEDGER, context, ORDERS) == {"data", "index"}


@pytest.mark.parametrize("driver_name", ["", "glacier"])
def test_a_driver_that_is_not_known_is_refused(storage: OffloadStorage, driver_name: str) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)

    with pytest.raises(PermanentError, match="driver"):
        storage.ledgers.delete_offloaded(LEDGER, replace(context, driver_name=driver_name), ORDERS)

    assert storage.parts(LEDGER, context, ORDERS) == {"data", "index"}


def test_streaming_segments_are_refused(storage: OffloadStorage) -> None:
    context = storage.context(0, 0)
    segment = OffloadSegment(MSB, LSB, context.driver_name, context.driver_metadata, complete=True)

    with pytest.raises(PermanentError):
        storage.ledgers.delete_offloaded(LEDGER, replace(context, segments=(segment,)), ORDERS)


def test_a_context_without_an_attempt_is_refused(storage: OffloadStorage) -> None:
    with pytest.raises(PermanentError):
        storage.ledgers.delete_offloaded(LEDGER, storage.context(0, 0), ORDERS)


def test_a_storage_that_is_missing_is_no_absence(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)
    storage.disappear()

    with pytest.raises(TemporaryError):
        storage.ledgers.delete_offloaded(LEDGER, context, ORDERS)


@pytest.mark.parametrize("parts", [["data"], ["index"], ["data", "index"]])
def test_what_there_is_of_a_copy_exists_until_it_is_deleted(storage: OffloadStorage, parts: list[str]) -> None:
    context, another = storage.context(MSB, LSB), storage.context(MSB, LSB + 1)
    assert not storage.ledgers.exists(LEDGER, context, ORDERS)
    storage.put(LEDGER, context, ORDERS, parts)

    assert storage.ledgers.exists(LEDGER, replace(context, complete=False), ORDERS)
    assert not storage.ledgers.exists(LEDGER, another, ORDERS)
    assert storage.parts(LEDGER, context, ORDERS) == set(parts)

    storage.ledgers.delete_offloaded(LEDGER, context, ORDERS)
    assert not storage.ledgers.exists(LEDGER, context, ORDERS)


def test_a_finished_copy_is_whole(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)

    assert storage.ledgers.is_whole(LEDGER, context, ORDERS)

    assert storage.parts(LEDGER, context, ORDERS) == {"data", "index"}


@pytest.mark.parametrize("parts", [[], ["data"], ["index"]])
def test_a_copy_that_lacks_a_part_is_not_whole(storage: OffloadStorage, parts: list[str]) -> None:
    context, another = storage.context(MSB, LSB), storage.context(MSB, LSB + 1)
    storage.put(LEDGER, another, ORDERS)
    storage.put(LEDGER, context, ORDERS, parts)

    assert not storage.ledgers.is_whole(LEDGER, context, ORDERS)


def test_a_copy_that_never_was_is_not_whole(storage: OffloadStorage) -> None:
    assert not storage.ledgers.is_whole(LEDGER, storage.context(MSB, LSB), ORDERS)


@pytest.mark.parametrize("part", ["data", "index"])
def test_a_copy_that_is_cut_short_is_not_whole(storage: OffloadStorage, part: str) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)
    storage.cut(LEDGER, context, ORDERS, part)

    assert not storage.ledgers.is_whole(LEDGER, context, ORDERS)


def test_an_attempt_that_did_not_finish_is_not_whole(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)

    assert not storage.ledgers.is_whole(LEDGER, replace(context, complete=False), ORDERS)


def test_streaming_segments_are_not_a_whole_copy(storage: OffloadStorage) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)
    segment = OffloadSegment(MSB, LSB, context.driver_name, context.driver_metadata, complete=True)

    assert not storage.ledgers.is_whole(LEDGER, replace(context, segments=(segment,)), ORDERS)


@pytest.mark.parametrize("question", ["exists", "is_whole"])
def test_nothing_is_looked_for_that_is_not_ours_or_not_allowed(storage: OffloadStorage, question: str) -> None:
    context = storage.context(MSB, LSB)
    storage.put_foreign(LEDGER, context, ORDERS)

    for refused in (
        context,
        storage.elsewhere(context),
        replace(context, driver_name="glacier"),
        storage.context(0, 0),
    ):
        with pytest.raises(PermanentError):
            getattr(storage.ledgers, question)(LEDGER, refused, ORDERS)


@pytest.mark.parametrize("question", ["exists", "is_whole"])
def test_a_failed_look_is_not_an_absence(storage: OffloadStorage, question: str) -> None:
    context = storage.context(MSB, LSB)
    storage.put(LEDGER, context, ORDERS)
    storage.disappear()

    with pytest.raises(TemporaryError):
        getattr(storage.ledgers, question)(LEDGER, context, ORDERS)
