"""Paths of Pulsar 4.0 and BookKeeper 4.17 in the metadata store.

Every path is absolute below the cluster's chroot. Ledger ids use the hybrid layout that Pulsar's
``PulsarLedgerManager`` always uses (BookKeeper ``StringUtils.getHybridHierarchicalLedgerPath``).
"""

import re
from collections.abc import Iterable

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, BookieId, LedgerId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import CursorName, ManagedLedgerName, SchemaId, TopicDomain, TopicName

MANAGED_LEDGERS = "/managed-ledgers"
SCHEMAS = "/schemas"
REFERRING = (f"{MANAGED_LEDGERS}/", f"{SCHEMAS}/")
"""Beginnings of the paths of nodes that may reference ledgers."""
PARTITIONED_TOPICS = "/admin/partitioned-topics"
POLICIES = "/admin/policies"
"""Below it tenants, and below these their namespaces' policies; may be in a configuration store of their own."""
LOCAL_POLICIES = "/admin/local-policies"
"""Namespaces' policies that concern this cluster only, always in its own metadata store."""
DEFAULT_LEDGERS_ROOT = "/ledgers"
READ_ONLY_BOOKIES = "readonly"
LAST_SHORT_LEDGER_ID = 2**31 - 2
"""Ids up to here live in the 2-4-4 layout, larger ones in the long 3-4-4-4-4 layout."""

_TOPIC_NODE = re.compile(
    rf"(?:{MANAGED_LEDGERS}|{PARTITIONED_TOPICS})(?:/[^/]+){{2,3}}/{TopicDomain.PERSISTENT.value}/[^/]+"
)
_LEDGER_BELOW_ROOT = re.compile(
    r"([0-9]{2})/([0-9]{4})/L([0-9]{4})|([0-9]{3})/([0-9]{4})/([0-9]{4})/([0-9]{4})/L([0-9]{4})"
)


def managed_ledger_path(name: ManagedLedgerName) -> str:
    """Return the path of a ``ManagedLedgerInfo`` node."""
    return f"{MANAGED_LEDGERS}/{name}"


def cursor_path(name: ManagedLedgerName, cursor: CursorName) -> str:
    """Return the path of a cursor's ``ManagedCursorInfo`` node."""
    return f"{MANAGED_LEDGERS}/{name}/{cursor}"


def schema_path(schema_id: SchemaId) -> str:
    """Return the path of a ``SchemaLocator`` node."""
    return f"{SCHEMAS}/{schema_id}"


def partitioned_topic_path(topic: TopicName) -> str:
    """Return the path of the node that holds a partitioned topic's number of partitions."""
    encoded = topic.managed_ledger_name.rsplit("/", 1)[1]
    return f"{PARTITIONED_TOPICS}/{topic.namespace}/{topic.domain.value}/{encoded}"


def is_topic_node(path: str) -> bool:
    """Return True if a persistent topic's own node may be there: its managed ledger or its number of partitions.

    A cursor of a topic named "persistent" has the same form as a V1 topic, and counts as one.
    """
    return _TOPIC_NODE.fullmatch(path) is not None


def ledger_path(ledger_id: LedgerId, root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the path of a ledger's metadata, in the hierarchical or long-hierarchical layout by the size of the id."""
    if ledger_id <= LAST_SHORT_LEDGER_ID:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of_path(path: str, root: str = DEFAULT_LEDGERS_ROOT) -> LedgerId | None:
    """Return the id whose metadata node is at ``path``, or None for every other node (inverse of `ledger_path`)."""
    match = _LEDGER_BELOW_ROOT.fullmatch(path.removeprefix(f"{root}/"))
    if match is None or not path.startswith(f"{root}/"):
        return None
    short = match[1]
    ledger_id = int(match[1] + match[2] + match[3] if short else "".join(match.groups()[3:]))
    is_canonical = ledger_id <= LAST_SHORT_LEDGER_ID if short else LAST_SHORT_LEDGER_ID < ledger_id <= MAX_LEDGER_ID
    return LedgerId(ledger_id) if is_canonical else None


def instance_id_path(root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the path of BookKeeper's own id of this cluster's ledger storage, new with every format."""
    return f"{root}/INSTANCEID"


def layout_path(root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the path of the ledgers' layout, which clusters made by ``initialize-cluster-metadata`` need not have."""
    return f"{root}/LAYOUT"


def identity_paths(root: str = DEFAULT_LEDGERS_ROOT) -> tuple[str, str]:
    """Return the paths of the nodes that `instance_id_of` takes."""
    return instance_id_path(root), layout_path(root)


def available_bookies_path(root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the path below which writable bookies register; its child `READ_ONLY_BOOKIES` is a folder."""
    return f"{root}/available"


def read_only_bookies_path(root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the path below which read-only bookies register."""
    return f"{available_bookies_path(root)}/{READ_ONLY_BOOKIES}"


def bookie_registration_paths(bookie: BookieId, root: str = DEFAULT_LEDGERS_ROOT) -> tuple[str, str]:
    """Return the paths at which a bookie registers as writable and as read-only."""
    return f"{available_bookies_path(root)}/{bookie}", f"{read_only_bookies_path(root)}/{bookie}"


def under_replication_marks_path(root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the root of auto-recovery's marks of ledgers that lack copies (``ZkLedgerUnderreplicationManager``).

    Auto-recovery removes a mark together with the parents that it leaves empty.
    """
    return f"{root}/underreplication/ledgers"


def under_replication_mark_path(ledger_id: LedgerId, root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the path of auto-recovery's mark of a ledger that lacks copies."""
    groups = f"{ledger_id:016x}"
    tree = "/".join(groups[start : start + 4] for start in range(0, 16, 4))
    return f"{under_replication_marks_path(root)}/{tree}/urL{ledger_id:010d}"


def replication_locks_path(root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the root of the locks that replication workers and bookies' garbage collectors hold on ledgers."""
    return f"{root}/underreplication/locks"


def replication_lock_path(ledger_id: LedgerId, root: str = DEFAULT_LEDGERS_ROOT) -> str:
    """Return the path of the lock on one ledger."""
    return f"{replication_locks_path(root)}/urL{ledger_id:010d}"


def instance_id_of(nodes: Iterable[Node | None], ledgers_root: str) -> str:
    """Return BookKeeper's instance id from the nodes at `identity_paths`.

    ``pulsar standalone`` has none. Its layout was created once, so its creation time identifies its storage. An
    id must not be added: bookies refuse to start with an id other than their cookies', and standalone then wipes them.

    A wrong ``ledgersRootPath`` would make every ledger look deleted, so the absence of both stops everything.

    Raises:
        TemporaryError: there is no such node.
    """
    instance_id, layout = nodes
    if instance_id is not None:
        return instance_id.data.decode(errors="replace")
    if layout is not None:
        made_ms = f"-{layout.created_ms}" if layout.times_known else ""
        return f"layout-{layout.created_order}{made_ms}"
    raise TemporaryError(
        f"there is no BookKeeper instance id at {instance_id_path(ledgers_root)}, and no layout: "
        "check ledgersRootPath and the metadata store's address"
    )


def read_instance_id(store: MetadataStore, ledgers_root: str) -> str:
    """Return BookKeeper's instance id from the store; raises as `instance_id_of`."""
    return instance_id_of(store.read_many(identity_paths(ledgers_root)), ledgers_root)


def tenant_of_owner(path: str) -> str:
    """Return the tenant of a managed ledger, a cursor or a schema by the path of its node."""
    return path.split("/")[2]
