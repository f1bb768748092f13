"""Whom the nodes of a whole column belong to, and what kind of node they are: `service.audit.places`, vectorised.

Invariant: a path is answered here only if it has the plain form that nearly all have; all others go to the exact
functions one by one.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from service.audit.places import Owner, Place, locate, owner_of_managed_ledger, owner_of_schema
from service.ledger_ownership.paths import MANAGED_LEDGERS

Owners = tuple[pa.Array, pa.Array, pa.Array]
"""Tenants, namespaces, topics."""

_DOMAIN = "(?P<domain>persistent|non-persistent)"
_PLAIN = f"(?P<tenant>[^/]*)/(?P<namespace>[^/]*)/{_DOMAIN}/(?P<local>[A-Za-z0-9_.*-]+)"
_PLAIN_NAME = f"^{_PLAIN}$"
_PLAIN_PATH = f"^{MANAGED_LEDGERS}/{_PLAIN}(?:/[^/]*)?$"
_MANAGED_LEDGER = f"^{MANAGED_LEDGERS}/[^/]*/[^/]*/(?:persistent|non-persistent)/[^/]*$"
_CURSOR = f"^{MANAGED_LEDGERS}/(?P<owner>[^/]*/[^/]*/(?:persistent|non-persistent)/[^/]*)/[^/]*$"
# A topic called so makes the path one of V1 as well.
_EITHER = "/(?:persistent|non-persistent)/[^/]*$"


def owner_at(path: str) -> Owner:
    """Whom the references of a node belong to."""
    located = locate(path)
    match located.place:
        case Place.SCHEMA:
            return owner_of_schema(located.owner)
        case Place.ODD:
            return Owner()
        case _:
            return owner_of_managed_ledger(located.owner)


def owners_at(paths: pa.Array) -> Owners:
    """`owner_at` for a column."""
    return _owners(pc.extract_regex(paths, _PLAIN_PATH), lambda rest: [owner_at(path) for path in rest], paths)


def topics_of_managed_ledgers(names: pa.Array) -> pa.Array:
    """`service.audit.places.owner_of_managed_ledger` for a column, the topics alone."""
    plain = pc.extract_regex(names, _PLAIN_NAME)
    return _owners(plain, lambda rest: [owner_of_managed_ledger(name) for name in rest], names)[2]


def are_plain_managed_ledgers(paths: pa.Array) -> pa.Array:
    """Where surely `Place.MANAGED_LEDGER` is."""
    return pc.match_substring_regex(paths, _MANAGED_LEDGER)


def owners_of_plain_cursors(paths: pa.Array) -> pa.Array:
    """The managed ledgers' names where surely `Place.CURSOR` is, null elsewhere."""
    owners = pc.struct_field(pc.extract_regex(paths, _CURSOR), "owner")
    return pc.if_else(pc.match_substring_regex(paths, _EITHER), pa.scalar(None, pa.string()), owners)


def _owners(plain: pa.Array, exactly, values: pa.Array) -> Owners:  # type: ignore[no-untyped-def]
    tenants = pc.struct_field(plain, "tenant")
    namespaces = pc.binary_join_element_wise(tenants, pc.struct_field(plain, "namespace"), "/")
    beginnings = pc.binary_join_element_wise(pc.struct_field(plain, "domain"), namespaces, "://")
    topics = pc.binary_join_element_wise(beginnings, pc.struct_field(plain, "local"), "/")
    if not tenants.null_count:
        return tenants, namespaces, topics
    rest = pc.is_null(tenants)
    owners: Sequence[Owner] = exactly(values.filter(rest).to_pylist())
    columns = ([getattr(owner, name) for owner in owners] for name in Owner.__slots__)
    tenants, namespaces, topics = (
        pc.replace_with_mask(column, rest, pa.array(exact, pa.string()))
        for column, exact in zip((tenants, namespaces, topics), columns, strict=True)
    )
    return tenants, namespaces, topics
