"""A Pulsar in pods, the chart beside it, and the oracles of every test of deletion after each test."""

import shutil
from collections.abc import Iterator

import pytest

from tests.cluster.needs import NEEDS
from tests.kubernetes.cluster import IMAGE, PodsUnderTest
from tests.kubernetes.images import Images
from tests.kubernetes.kubectl import Namespace
from tests.kubernetes.release import Release

_NAMESPACE = "pulsar-sidecar-tests"
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def namespace() -> Iterator[Namespace]:
    """Return a namespace that accepts only unprivileged pods."""
    need = NEEDS["kubernetes"]
    if not need.is_there() or shutil.which("helm") is None:
        pytest.skip(f"{need.reason}; helm is needed too. `make test-kubernetes` starts one where none is chosen")
    namespace = Namespace(_NAMESPACE)
    namespace.create(**_RESTRICTED)
    yield namespace
    namespace.kubectl("delete", "namespace", namespace.name, "--wait=false")


@pytest.fixture(scope="session")
def images(namespace: Namespace) -> Images:
    return Images()


@pytest.fixture(scope="session")
def deletion_cluster(namespace: Namespace, images: Images) -> PodsUnderTest:
    images.provide_from_outside(IMAGE)
    cluster = PodsUnderTest(namespace)
    cluster.start()
    return cluster


@pytest.fixture(scope="session")
def sidecars(
    namespace: Namespace, images: Images, deletion_cluster: PodsUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Release:
    """The chart beside it, with two sidecars."""
    images.provide("sidecar")
    release = Release(namespace, images.values, deletion_cluster.domain, tmp_path_factory.mktemp("release"))
    release.make_secrets()
    release.upgrade()
    return release


@pytest.fixture
def release(sidecars: Release) -> Release:
    """Return the release with both sidecars ready and the values that all tests share."""
    sidecars.shared()
    return sidecars
