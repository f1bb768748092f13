"""Bookies in the metadata store, and which of them are registered now."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import BookieId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import READ_ONLY_BOOKIES, available_bookies_path, read_only_bookies_path

_UNKNOWN: Final = "which bookies are registered is not known"


class BookieState(StrEnum):
    """By the metadata store."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    DOWN = "down"
    """The bookie has a cookie, or ledgers name it, and it is not registered."""


def bookie_states(store: MetadataStore, root: str) -> Mapping[BookieId, BookieState]:
    """Return the states of bookies that are registered or have a cookie, in order of their ids."""
    folders = (f"{root}/cookies", read_only_bookies_path(root), available_bookies_path(root))
    states = (BookieState.DOWN, BookieState.READ_ONLY, BookieState.WRITABLE)
    found = {
        name: state for state, names in zip(states, store.children_many(folders), strict=True) for name in names or ()
    }
    return {BookieId(name): found[name] for name in sorted(found) if name != READ_ONLY_BOOKIES}


def describe_registered(store: MetadataStore, root: str) -> str:
    """Describe in words how many bookies are registered as writable, and how many are known; raises nothing."""
    try:
        states = bookie_states(store, root)
    except SidecarError:
        return _UNKNOWN
    writable = sum(state is BookieState.WRITABLE for state in states.values())
    return f"bookies registered as writable: {writable} of {len(states)} (pulsar-sidecar pins bookies shows them)"
