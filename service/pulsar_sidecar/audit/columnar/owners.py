"""Whom the nodes of a whole column belong to, and what kind of node they are: `audit.places`, vectorised.

Invariant: a path is answered here only if it has the plain form that nearly all have; all others are null.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, SCHEMAS

_PERSISTENT = "persistent"

Owners = tuple[pa.Array, pa.Array, pa.Array]
"""Tenants, namespaces, topics."""

_DOMAIN = "(?P<domain>persistent|non-persistent)"
_PLAIN = f"(?P<tenant>[^/]*)/(?P<namespace>[^/]*)/{_DOMAIN}/(?P<local>[A-Za-z0-9_.*-]+)"
_PLAIN_NAME = f"^{_PLAIN}$"
_PLAIN_PATH = f"^{MANAGED_LEDGERS}/{_PLAIN}(?:/[^/]*)?$"
# In the place of its domain stands nothing; every topic with a schema is persistent.
_PLAIN_SCHEMA = f"^{SCHEMAS}/(?P<tenant>[^/]+)/(?P<namespace>[^/]+)/(?P<domain>)(?P<local>[A-Za-z0-9_.*-]+)$"
_PARTITION = "-partition-"
_MANAGED_LEDGER = f"^{MANAGED_LEDGERS}/[^/]*/[^/]*/(?:persistent|non-persistent)/[^/]*$"
_CURSOR = f"^{MANAGED_LEDGERS}/(?P<owner>[^/]*/[^/]*/(?:persistent|non-persistent)/[^/]*)/[^/]*$"
# A topic called so makes the path one of V1 as well.
_EITHER = "/(?:persistent|non-persistent)/[^/]*$"


def plain_owners_at(paths: pa.Array) -> Owners:
    """`audit.engine.places.owner_at` for a column, null where a path is not plain."""
    fields = _fields(paths, _PLAIN_PATH)
    if fields[0].null_count:
        fields = [pc.coalesce(one, other) for one, other in zip(fields, _schema_fields(paths), strict=True)]
    return _owners(fields)


def plain_owners_of(managed_ledgers: pa.Array) -> Owners:
    """`audit.engine.places.owner_of_managed_ledger` for a column, null where a name is not plain."""
    return _owners(_fields(managed_ledgers, _PLAIN_NAME))


def _schema_fields(paths: pa.Array) -> list[pa.Array]:
    # The schema of partitions is their base topic's.
    is_plain = pc.invert(pc.match_substring_regex(paths, _PARTITION))
    tenants, namespaces, domains, local_names = (
        pc.if_else(is_plain, field, None) for field in _fields(paths, _PLAIN_SCHEMA)
    )
    domains = pc.if_else(pc.is_valid(domains), _PERSISTENT, None)
    return [tenants, namespaces, domains, local_names]


def are_plain_managed_ledgers(paths: pa.Array) -> pa.Array:
    """Where surely `Place.MANAGED_LEDGER` is."""
    return pc.match_substring_regex(paths, _MANAGED_LEDGER)


def are_schemas(paths: pa.Array) -> pa.Array:
    """Where `Place.SCHEMA` is."""
    return pc.starts_with(paths, f"{SCHEMAS}/")


def owners_of_plain_cursors(paths: pa.Array) -> pa.Array:
    """The managed ledgers' names where surely `Place.CURSOR` is, null elsewhere."""
    owners = pc.struct_field(pc.extract_regex(paths, _CURSOR), "owner")
    return pc.if_else(pc.match_substring_regex(paths, _EITHER), pa.scalar(None, pa.string()), owners)


def _fields(values: pa.Array, pattern: str) -> list[pa.Array]:
    """Tenant, namespace, domain and local name, null where the pattern does not fit."""
    found = pc.extract_regex(values, pattern)
    return [pc.struct_field(found, name) for name in ("tenant", "namespace", "domain", "local")]


def _owners(fields: Sequence[pa.Array]) -> Owners:
    tenants, namespaces, domains, local_names = fields
    namespaces = pc.binary_join_element_wise(tenants, namespaces, "/")
    topics = pc.binary_join_element_wise(pc.binary_join_element_wise(domains, namespaces, "://"), local_names, "/")
    return tenants, namespaces, topics
