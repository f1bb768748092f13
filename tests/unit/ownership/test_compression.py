"""The wrapper around compressed nodes: all of Pulsar's algorithms, and everything that can be wrong with one."""

import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.ownership.exact_decoding import MAX_UNCOMPRESSED_BYTES, unwrap
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.bookkeeper import compressed, wrapped
from tests.unit.ownership import golden


def _deflate_as_pulsar(plain: bytes) -> bytes:
    stream = zlib.compressobj()
    return stream.compress(plain) + stream.flush(zlib.Z_SYNC_FLUSH)


COMPRESSORS = {
    "NONE": lambda plain: plain,
    "LZ4": lambda plain: bytes(cramjam.lz4.compress_block(plain, store_size=False)),
    "ZLIB": _deflate_as_pulsar,
    "ZSTD": lambda plain: bytes(cramjam.zstd.compress(plain)),
    "SNAPPY": lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
}
REAL = [golden.MANAGED_LEDGER_ZSTD, golden.MANAGED_LEDGER_SNAPPY, golden.CURSOR_LZ4, golden.CURSOR_ZLIB]


def test_knows_every_algorithm_of_pulsar() -> None:
    assert set(COMPRESSORS) == set(ml.CompressionType.keys())


@given(st.sampled_from(sorted(COMPRESSORS)), st.binary(max_size=2000))
def test_round_trip(algorithm: str, plain: bytes) -> None:
    assert unwrap(compressed(algorithm, plain, COMPRESSORS[algorithm](plain))) == plain


def test_a_zlib_stream_that_ends_is_fine_too() -> None:
    assert unwrap(compressed("ZLIB", b"plain", zlib.compress(b"plain"))) == b"plain"


@given(st.binary(max_size=50).filter(lambda data: data[:2] != b"\x47\x78"))
def test_a_plain_node_passes(data: bytes) -> None:
    assert unwrap(data) == data


@pytest.mark.parametrize("node", REAL)
def test_every_truncation_is_noticed(node: bytes) -> None:
    whole = unwrap(node)
    for length in range(2, len(node)):
        try:
            assert unwrap(node[:length]) == whole
        except UndecodableError:
            continue


@pytest.mark.parametrize("algorithm", sorted(COMPRESSORS))
@pytest.mark.parametrize("promised", [9, 11, 0])
def test_another_size_than_promised(algorithm: str, promised: int) -> None:
    payload = COMPRESSORS[algorithm](b"ten bytes!")
    with pytest.raises(UndecodableError):
        unwrap(compressed(algorithm, bytes(promised), payload))


@pytest.mark.parametrize("size", [-1, MAX_UNCOMPRESSED_BYTES + 1])
def test_an_absurd_size_is_not_even_tried(size: int) -> None:
    reason = (
        f"a compressed node claims {size:,} bytes, and at most 67108864 are ever expanded; inspect it with zkCli.sh"
    )
    with pytest.raises(UndecodableError, match=f"^{reason}$"):
        unwrap(wrapped("LZ4", size))


def test_the_largest_size_is_tried() -> None:
    with pytest.raises(UndecodableError, match=f"expands to 3 bytes, not {MAX_UNCOMPRESSED_BYTES}"):
        unwrap(wrapped("NONE", MAX_UNCOMPRESSED_BYTES, b"abc"))


@pytest.mark.parametrize(
    "node",
    [
        b"\x47\x78",
        b"\x47\x78\x7f\xff\xff\xff\x08\x01",
        b"\x47\x78\x00\x00\x00\x00rest",
        b"\x47\x78\x00\x00\x00\x04\x08\x09\x10\x01x",
        b"\x47\x78\x00\x00\x00\x02\x08\x01x",
    ],
)
def test_damaged_wrappers(node: bytes) -> None:
    with pytest.raises(UndecodableError):
        unwrap(node)


@given(st.binary(max_size=60))
def test_garbage_behind_the_magic_never_escapes_as_another_error(data: bytes) -> None:
    try:
        unwrap(b"\x47\x78" + data)
    except UndecodableError:
        return


HEADER = "a compressed node ends inside its header; read it again"
METADATA = "a compressed node ends inside its metadata; read it again"
STREAM = "a compressed node is not one whole zlib stream; read it again"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (b"\x47\x78\x00\x00\x00", HEADER),
        (b"\x47\x78\x00\x00\x00\x00", "ManagedLedgerInfoMetadata lacks a required field; read it again"),
        (b"\x47\x78\xff\xff\xff\xff", METADATA),
        (b"\x47\x78\x00\x00\x00\x05\x08\x01\x10\x01", METADATA),
        (compressed("NONE", b"plain", b"plai"), "a compressed node expands to 4 bytes, not 5; read it again"),
        (compressed("ZLIB", b"plain", zlib.compress(b"plain") + b"more"), STREAM),
        (compressed("ZLIB", b"plain", zlib.compress(b"longer than plain")), STREAM),
    ],
)
def test_why_a_wrapper_is_not_understood(node: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError) as refusal:
        unwrap(node)
    assert str(refusal.value) == reason


def test_why_a_payload_does_not_expand() -> None:
    with pytest.raises(UndecodableError, match=r"^a compressed node does not expand \(.+\); read it again$"):
        unwrap(compressed("ZSTD", b"plain", b"not zstd"))
