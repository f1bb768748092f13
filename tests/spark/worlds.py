"""Random small clusters in which anything may be missing, left over, damaged or shared."""

from hypothesis import strategies as st

from service.audit.policies import HOUR_MS
from service.model.ledgers import LedgerState, OffloadContext
from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    managed_ledger_bytes,
    schema_custom_metadata,
    schema_locator_bytes,
)
from tests.unit.audit.audit_worlds import AS_OF_MS, BUCKET_KEY, World, compaction_row, full_world, segment_row

NAMES = ("t/n/persistent/a", "t/n/persistent/b%2Fc-partition-3", "u/c/m/persistent/old", "u/m/persistent/a.b")
CURSORS = ("sub", "s%2Fub", "__compaction")
TOPICS = ("persistent://t/n/a", "persistent://u/m/a.b", "persistent://t/n/gone")
SCHEMAS = ("t/n/a", "u/m/a.b")
IDS = st.one_of(st.integers(11, 40), st.sampled_from([2**20 - 1, 2**20, 2**31, 2**40 + 5]))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """One."""
    world = full_world()
    for name in draw(st.sets(st.sampled_from(NAMES))):
        _topic(draw, world, f"/managed-ledgers/{name}")
    for schema in draw(st.sets(st.sampled_from(SCHEMAS))):
        world.nodes[f"/schemas/{schema}"] = schema_locator_bytes(draw(st.lists(IDS, min_size=1, max_size=3)))
    for path in draw(st.sets(st.sampled_from(["/managed-ledgers/odd", "/schemas/t/n/a", "/managed-ledgers/u"]))):
        if draw(st.integers(0, 3)) == 0:
            world.nodes[path] = draw(st.sampled_from([b"garbage", None, b"", managed_ledger_bytes([12, 13])]))
    world.log_segments.append(segment_row(draw(st.one_of(st.none(), IDS))))
    for ledger_id in draw(st.sets(IDS, max_size=15)):
        _ledger(draw, world, ledger_id)
    everything = sorted(world.ledgers)
    world.unlisted = draw(st.sets(st.sampled_from(everything), max_size=1))
    world.listed_too = draw(st.sets(IDS, max_size=1)) - world.ledgers.keys()
    return world


def _topic(draw: st.DrawFn, world: World, path: str) -> None:
    ids = draw(st.lists(IDS, unique=True, max_size=5))
    gone = OffloadContext(1, 2, "s3", {}, complete=True, bookkeeper_deleted=True)
    offloaded = {ledger_id: gone for ledger_id in ids if draw(st.integers(0, 4)) == 0}
    world.nodes[path] = managed_ledger_bytes(ids, offloaded=offloaded, terminated=draw(st.booleans()))
    for cursor in draw(st.sets(st.sampled_from(CURSORS))):
        ledger, compacted, bucket = (draw(st.one_of(st.none(), IDS)) for _ in range(3))
        buckets = {} if bucket is None else {BUCKET_KEY: bucket}
        value = cursor_bytes(ledger, compacted_ledger=compacted, buckets=buckets)
        world.nodes[f"{path}/{cursor}"] = value
        if cursor == "__compaction" and draw(st.booleans()):
            state = draw(st.sampled_from(["read", "no-ledger", "no-cursor", "ledger-gone", "unreadable"]))
            entry = {} if state == "read" else {"entry": None}
            world.cursor_ledgers.append(
                compaction_row(draw(IDS), f"{path}/{cursor}", state=state, cursor_value=value, **entry)
            )


def _ledger(draw: st.DrawFn, world: World, ledger_id: int) -> None:
    name, topic = draw(st.sampled_from([*NAMES, "no/topic"])), draw(st.sampled_from(TOPICS))
    custom = draw(
        st.sampled_from([
            {},
            data_custom_metadata(name),
            cursor_custom_metadata(name, "sub"),
            schema_custom_metadata(draw(st.sampled_from(SCHEMAS))),
            compacted_custom_metadata(topic),
            bucket_custom_metadata(topic, "sub", BUCKET_KEY),
        ])
    )  # fmt: skip
    age_ms = draw(st.sampled_from([1, 71, 500])) * HOUR_MS
    world.ledger(ledger_id, custom, state=draw(st.sampled_from(list(LedgerState))), ctime_ms=AS_OF_MS - age_ms)
    if draw(st.integers(0, 9)) == 0:
        world.ledgers[ledger_id] |= draw(st.sampled_from([{"value": b"garbage"}, {"value": None, "unreadable": "no"}]))


def changed(draw_from: st.DataObject, world: World) -> None:
    """The same cluster a day later."""
    world.as_of_ms += 24 * HOUR_MS
    for ledger_id in sorted(world.ledgers):
        if draw_from.draw(st.integers(0, 5)) == 0:
            world.ledgers[ledger_id]["mzxid"] = 900
