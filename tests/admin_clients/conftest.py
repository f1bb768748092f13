"""A cluster with authentication by tokens and with rights, a sidecar beside it, and clients."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin_clients.java_admin import JavaAdmin, java_admin
from tests.admin_clients.preparing import Preparing
from tests.cluster.choosing import FAST_SESSIONS, version_under_test
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.tokens import TOKEN_CONF, token

_BROKER_CONF = {
    **TOKEN_CONF,
    **FAST_SESSIONS,
    "forceDeleteNamespaceAllowed": "true",
    "enablePackagesManagement": "true",
    "packagesReplicas": "1",
}
_GO = Path(__file__).with_name("go")
_BUILD_SECONDS = 600


@pytest.fixture(scope="session")
def guarded(special_cluster: ClusterFactory) -> Iterator[ClusterUnderTest]:
    with special_cluster(brokers=2, broker_conf=_BROKER_CONF) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def broker(guarded: ClusterUnderTest) -> str:
    return guarded.addresses.web_service_urls[0]


@pytest.fixture(scope="session")
def sidecar(guarded: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarProcess]:
    """Start a sidecar that requires the brokers' tokens and has an identity of its own."""
    sidecars = Sidecars(guarded.addresses, tmp_path_factory.mktemp("sidecars"))
    yield sidecars.start(
        authentication_enabled="true",
        token_secret_key=TOKEN_CONF["tokenSecretKey"],
        super_user_roles="admin",
        auth_plugin="token",
        auth_params=f"token:{token('admin')}",
    )
    sidecars.close()


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaAdmin]:
    with java_admin(version_under_test(), tmp_path_factory.mktemp("java-admin")) as admin:
        yield admin


@pytest.fixture(scope="session")
def preparing(guarded: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Preparing:
    return Preparing(guarded.addresses, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program in ``go``, built with the module that its ``go.mod`` names."""
    program = tmp_path_factory.mktemp("go") / "admin-calls"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=_GO, check=True, timeout=_BUILD_SECONDS)
    return program
