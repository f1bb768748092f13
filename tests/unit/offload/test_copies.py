"""Names of copies and the check that an object is what the record names."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.offload.offloaded_ledgers import check_identity
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext, OffloadSegment
from pulsar_sidecar.model.names import ManagedLedgerName
from pulsar_sidecar.ownership.offload_locations import ObjectRole, OffloadedCopy, copy_of

ORDERS = ManagedLedgerName("public/default/persistent/orders%3Av1%3Dx")
COPY = OffloadedCopy(LedgerId(4), UUID("5facb921-a29a-41f6-bc28-bf15d5273bac"), ORDERS)
CONTEXT = OffloadContext(6894088683710464502, -4888447295019336788, "S3", {"bucket": "pulsar-offload"})
WRITTEN_BY_4_0_8 = {
    "Content-Type": "application/unknown",
    "s3managedledgeroffloaderformatversion": "1",
    "s3managedledgeroffloadersoftwareversion": "4.0.8",
    "s3managedledgeroffloadersoftwaregitsha": "2c519a386acbfaa2dbebcc484bb42ba18e4278d3",
    "managedledgername": ORDERS,
    "pulsarclustername": "local",
    "role": "data",
}
LONG = st.integers(-(2**63), 2**63 - 1)


def test_names_are_those_of_the_offloader() -> None:
    assert copy_of(LedgerId(4), CONTEXT, ORDERS) == COPY
    assert COPY.key(ObjectRole.DATA) == "5facb921-a29a-41f6-bc28-bf15d5273bac-ledger-4"
    assert COPY.key(ObjectRole.INDEX) == "5facb921-a29a-41f6-bc28-bf15d5273bac-ledger-4-index"
    assert COPY.directory_name == "4-5facb921-a29a-41f6-bc28-bf15d5273bac"


@given(LONG, LONG)
def test_a_uuid_has_the_two_halves_of_java(most: int, least: int) -> None:
    digits = replace(CONTEXT, uid_msb=most, uid_lsb=least).attempt.hex
    assert int.from_bytes(bytes.fromhex(digits[:16]), "big", signed=True) == most
    assert int.from_bytes(bytes.fromhex(digits[16:]), "big", signed=True) == least


@pytest.mark.parametrize(("msb", "lsb"), [(2**63, 1), (1, -(2**63) - 1), (0, 2**64)])
def test_halves_out_of_range_are_refused(msb: int, lsb: int) -> None:
    with pytest.raises(InvalidInputError):
        copy_of(LedgerId(4), replace(CONTEXT, uid_msb=msb, uid_lsb=lsb), ORDERS)


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_ledger_ids_out_of_range_are_refused(ledger_id: int) -> None:
    with pytest.raises(InvalidInputError):
        copy_of(LedgerId(ledger_id), CONTEXT, ORDERS)


def test_streaming_segments_are_refused_even_beside_an_attempt() -> None:
    segment = OffloadSegment(1, 2, "S3", {}, complete=True)
    with pytest.raises(PermanentError, match="streaming"):
        copy_of(LedgerId(4), replace(CONTEXT, segments=(segment,)), ORDERS)


@pytest.mark.parametrize(
    "attributes",
    [
        WRITTEN_BY_4_0_8,
        {name.upper(): value for name, value in WRITTEN_BY_4_0_8.items()},
        {name: value for name, value in WRITTEN_BY_4_0_8.items() if name != "role"},
    ],
    ids=["as 4.0.8 writes", "in any case", "without a role"],
)
def test_an_object_of_the_copy_is_recognised(attributes: dict[str, str]) -> None:
    check_identity(COPY, ObjectRole.DATA, attributes, "local")


def test_an_older_offloader_that_names_only_its_format_is_not_recognised() -> None:
    with pytest.raises(PermanentError, match="does not name its owner"):
        check_identity(COPY, ObjectRole.INDEX, {"s3managedledgeroffloaderformatversion": "1"}, "local")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s3managedledgeroffloaderformatversion", None),
        ("s3managedledgeroffloaderformatversion", "2"),
        ("role", "index"),
        ("managedledgername", None),
        ("pulsarclustername", None),
        ("managedledgername", "public/default/persistent/orders"),
        ("pulsarclustername", "another"),
        ("pulsarclustername", ""),
    ],
)
def test_differing_attribute_is_named(name: str, value: str | None) -> None:
    attributes = {key: text for key, text in WRITTEN_BY_4_0_8.items() if key != name}
    if value is not None:
        attributes[name] = value
    with pytest.raises(PermanentError, match=name):
        check_identity(COPY, ObjectRole.DATA, attributes, "local")
