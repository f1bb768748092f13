"""docs/getting-started.md about ``pulsar standalone``, word by word but for the ports, which others may have."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.local_cluster.processes import free_ports
from pulsar_sidecar.local_cluster.software import find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec, MissingPrerequisiteError
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId

from tests.cluster.choosing import PROJECT, version_under_test
from tests.cluster.install_pages import run, running, scripts_of, section_of
from tests.cluster.patience import until
from tests.cluster.sidecars import inherited_environment

PAGE = PROJECT / "docs" / "getting-started.md"
TOPIC = "persistent/public/default/my-topic"
SMALL = {"PULSAR_MEM": "-Xmx512m -XX:MaxDirectMemorySize=512m", "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""What one test needs of a machine that runs others beside it."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the processes of the page listen."""

    web: int
    binary: int
    zookeeper: int
    bookie: int
    stream_storage: int
    sidecar: int

    def put_into(self, text: str) -> str:
        """A text with these in the place of the usual ones."""
        usual = {"8080": self.web, "6650": self.binary, "2181": self.zookeeper}
        return re.sub(r"\b(8080|6650|2181)\b", lambda found: str(usual[found.group()]), text)


def pulsar_directory(directory: Path, ports: Ports) -> Path:
    """What a reader has unpacked; the jars are not copied."""
    try:
        distribution = find_software(ClusterSpec(directory, version=version_under_test())).distribution
    except MissingPrerequisiteError as error:
        pytest.skip(f"no standalone to test on: {error}")
    for name in ("bin", "conf"):
        shutil.copytree(distribution / name, directory / name)
    (directory / "lib").symlink_to(distribution / "lib")
    for name in ("standalone.conf", "client.conf"):
        conf = directory / "conf" / name
        text = re.sub("^metadataStoreUrl=$", "metadataStoreUrl=zk:127.0.0.1:2181", conf.read_text(), flags=re.MULTILINE)
        conf.write_text(ports.put_into(text))
    return directory


def is_ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).ok
    except requests.RequestException:
        return False


def try_page(ports: Ports, directory: Path, environment: Mapping[str, str]) -> None:
    standalone, serve, calls = scripts_of(ports.put_into(section_of(PAGE, "Try it beside `pulsar standalone`")))
    ports_of_bookie = f" --bookkeeper-port {ports.bookie} --stream-storage-port {ports.stream_storage}"
    web, log = f"http://127.0.0.1:{ports.web}/admin/v2", directory / "serve.log"
    with running(standalone + ports_of_bookie, directory, environment, directory / "standalone.log"):
        until(lambda: is_ready(f"{web}/brokers/health"), "standalone serves")
        doctor = run(serve.replace("serve", "doctor"), directory, environment)
        assert (doctor.returncode, doctor.stdout.rstrip().endswith(", 0 failed")) == (0, True), doctor.stdout
        with running(serve, directory, environment, log):
            until(lambda: is_ready(f"http://127.0.0.1:{ports.sidecar}/readyz"), "the sidecar serves")
            produce, delete, *audit = calls.splitlines()
            assert run(produce, directory, environment).returncode == 0
            stats = requests.get(f"{web}/{TOPIC}/internalStats", timeout=10).json()
            ledgers = [ledger_path(LedgerId(each["ledgerId"])) for each in stats["ledgers"]]
            deleted = run(delete, directory, environment)
            assert deleted.stdout == "deleted persistent://public/default/my-topic\n"
            assert f'"recorded_ledgers": {len(ledgers)}' in log.read_text()
            with ZooKeeperMetadataStore(f"zk:127.0.0.1:{ports.zookeeper}", SystemClock()) as store:
                until(lambda: not any(store.read_many(ledgers)), "its ledgers are gone")
            audited = run("\n".join(audit), directory, environment)
            assert (audited.returncode, "ledgers in the listing" in audited.stdout) == (0, True), audited.stdout


@pytest.mark.usefixtures("full_run")
def test_every_command_of_the_page_in_its_order(tmp_path: Path) -> None:
    ports = Ports(*free_ports(6))
    listen = f"127.0.0.1:{ports.sidecar}"
    environment = inherited_environment() | SMALL | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PULSAR_SIDECAR_LISTEN": listen,
        "PULSAR_SIDECAR_ADMIN_URL": f"http://{listen}",
    }  # fmt: skip
    try_page(ports, pulsar_directory(tmp_path / "pulsar", ports), environment)
