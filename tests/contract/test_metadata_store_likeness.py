"""The store in memory against the real one: any sequence of calls gives the same results on both.

Everything that other tests conclude from the store in memory rests on this likeness.
"""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import Guard, GuardedDeletion, MetadataStore, Node

from tests.contract.metadata_store_servers import TwoSessions, empty_store, sessions_of
from tests.fakes.metadata import FakeMetadataStore

Step = Callable[[MetadataStore, str], object]

PATHS = ("/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f")
GUARD_PATHS = ("/g", "/h/i")

paths = st.sampled_from(PATHS + GUARD_PATHS)
versions = st.integers(0, 2).map(NodeVersion)
payloads = st.binary(max_size=4)
guard_lists = st.lists(st.builds(Guard, st.sampled_from(GUARD_PATHS), versions), max_size=2).map(tuple)
# Several deletions of related nodes in one call may rightly be judged at different moments, so each call names
# unrelated ones: no node twice, none above another, no node that is a guard as well.
unrelated = st.sampled_from([("/a/b/c", "/a/d", "/e/f"), ("/a/b", "/a/d", "/e"), ("/a", "/e")])
deletion_lists = unrelated.flatmap(
    lambda chosen: st.tuples(*(st.builds(GuardedDeletion, st.just(path), versions, guard_lists) for path in chosen))
)
steps = st.one_of(
    st.builds(lambda path: lambda store, root: comparable(store.read(root + path), root), paths),
    st.builds(lambda path: lambda store, root: store.children(root + path), paths),
    st.builds(
        lambda path, data: lambda store, root: comparable(store.create(root + path, data), root), paths, payloads
    ),
    st.builds(
        lambda path, data, version: lambda store, root: store.write(root + path, data, version),
        paths,
        payloads,
        versions,
    ),
    st.builds(
        lambda path, version: lambda store, root: store.delete(root + path, version), paths, versions | st.none()
    ),
    st.builds(
        lambda deletions: lambda store, root: store.delete_many([below(root, item) for item in deletions]),
        deletion_lists,
    ),
    st.builds(
        lambda chosen: (
            lambda store, root: [
                node and comparable(node, root) for node in store.read_many([root + path for path in chosen])
            ]
        ),
        st.lists(paths, max_size=4),
    ),
)


def comparable(node: Node | None, root: str) -> tuple[object, ...] | None:
    """Return the parts of a node that depend neither on its time of creation nor on its root."""
    if node is None:
        return None
    relative = node.path.removeprefix(root)
    return (relative, node.data, node.version, node.ephemeral, node.created_ms > 0)


def below(root: str, deletion: GuardedDeletion) -> GuardedDeletion:
    guards = tuple(Guard(root + guard.path, guard.version) for guard in deletion.guards)
    return GuardedDeletion(root + deletion.path, deletion.version, guards)


def answer(store: MetadataStore, root: str, step: Step) -> object:
    try:
        return step(store, root)
    except SidecarError as error:
        return type(error)


@pytest.fixture(scope="module", params=["zookeeper", "etcd"])
def real(request: pytest.FixtureRequest) -> Iterator[TwoSessions]:
    with empty_store(request) as url, sessions_of(url) as opened:
        yield opened


ROOTS = (f"/{number}" for number in count())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_both_stores_give_the_same_answers(real: TwoSessions, sequence: list[Step]) -> None:
    fake, root = FakeMetadataStore(), next(ROOTS)
    for store in (fake, real.store):
        for path in GUARD_PATHS:
            store.create(root + path, b"")
    for step in sequence:
        assert answer(real.store, root, step) == answer(fake, root, step)
