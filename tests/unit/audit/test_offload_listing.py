"""Listings of tiered storage: every object, or nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.adapters.parquet.directories import open_tables
from pulsar_sidecar.adapters.parquet.inputs import read_table
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.features.audit.ports import StoreMoment
from pulsar_sidecar.features.audit.results.tables import Table
from pulsar_sidecar.features.audit.sources.manifests import InputKind, Manifest, OrderRange, RowCounts
from pulsar_sidecar.features.audit.sources.offload_listing import list_offloaded
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

from tests.fakes.clock import FakeClock
from tests.unit.audit.audited_clusters import PLACE
from tests.unit.audit.sources import INSTANCE_ID
from tests.unit.audit.stored_copies import copy


@dataclass(frozen=True)
class Objects:
    location: str
    found: Sequence[Mapping[str, Any]] = ()
    error: Exception | None = None

    def rows(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        yield self.found
        if self.error is not None:
            raise self.error


def make(
    directory: Path,
    *places: Objects,
    clusters: tuple[str, ...] = ("local",),
    cluster_name: str | None = None,
    zxids: tuple[int, int] = (7, 9),
) -> Manifest:
    moments = iter([StoreMoment(zxid, INSTANCE_ID, clusters) for zxid in zxids])
    return list_offloaded(
        places,
        lambda: next(moments),
        partial(parquet_output, directory),
        FakeClock(),
        lambda text: None,
        ledgers_root="/ledgers",
        cluster_name=cluster_name,
        tool_version="1.0",
    )


def test_rows_and_manifest(tmp_path: Path) -> None:
    made = make(tmp_path / "listing", Objects(PLACE, copy(1, 11)), Objects("s3://empty"))
    assert open_tables(tmp_path / "listing", InputKind.OFFLOADED) == made
    assert made.counts == {PLACE: RowCounts(2, 0), "s3://empty": RowCounts(0, 0)}
    assert (made.instance_id, made.cluster_name, made.zxids) == (INSTANCE_ID, "local", OrderRange(7, 9))
    assert len(read_table(tmp_path / "listing", Table.OFFLOADED_OBJECTS)) == 2


def test_a_listing_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="broke off"):
        make(tmp_path / "listing", Objects(PLACE, copy(1, 11), TemporaryError("broke off")))
    with pytest.raises(TemporaryError, match="list again"):
        make(tmp_path / "listing", Objects(PLACE), zxids=(9, 7))
    assert not list(tmp_path.iterdir())


def test_the_clusters_name(tmp_path: Path) -> None:
    two = ("east", "west")
    assert make(tmp_path / "west", Objects(PLACE), clusters=two, cluster_name="west").cluster_name == "west"
    with pytest.raises(InvalidInputError, match="east, west; name the one"):
        make(tmp_path / "unknown", Objects(PLACE), clusters=two)
    with pytest.raises(InvalidInputError, match="--cluster"):
        make(tmp_path / "unknown", Objects(PLACE), clusters=two, cluster_name="north")
