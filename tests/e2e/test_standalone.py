"""The pages' commands for ``pulsar standalone``, verbatim except for the ports, which others may have."""

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pyarrow.parquet as pq
import pytest
import requests
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.local_cluster.processes import free_ports
from pulsar_sidecar.local_cluster.software import find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec, MissingPrerequisiteError
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.reports.documents import SUMMARY_NAME
from rocksdict import Options, Rdict

from tests.cluster.choosing import PROJECT, version_under_test
from tests.cluster.install_pages import run, running, scripts_of, section_of
from tests.cluster.patience import until
from tests.cluster.sidecars import inherited_environment

PAGE = PROJECT / "docs" / "getting-started.md"
AUDIT_PAGE = PROJECT / "docs" / "audit.md"
TOPIC = "persistent/public/default/my-topic"
SMALL = {"PULSAR_MEM": "-Xmx512m -XX:MaxDirectMemorySize=512m", "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Memory limits for a machine that runs other tests as well."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of the page's processes."""

    web: int
    binary: int
    zookeeper: int
    bookie: int
    stream_storage: int
    sidecar: int

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.web}/admin/v2"

    @property
    def of_bookie(self) -> str:
        return f" --bookkeeper-port {self.bookie} --stream-storage-port {self.stream_storage}"

    def put_into(self, text: str) -> str:
        """Replace the page's usual ports in a text."""
        usual = {"8080": self.web, "6650": self.binary, "2181": self.zookeeper}
        return re.sub(r"\b(8080|6650|2181)\b", lambda found: str(usual[found.group()]), text)


def pulsar_directory(directory: Path, ports: Ports, store: str = "") -> Path:
    """Return a directory like a reader's unpacked one, with ``metadataStoreUrl``; the jars are not copied."""
    try:
        distribution = find_software(ClusterSpec(directory, version=version_under_test())).distribution
    except MissingPrerequisiteError as error:
        pytest.skip(f"no standalone to test on: {error}")
    for name in ("bin", "conf"):
        shutil.copytree(distribution / name, directory / name)
    (directory / "lib").symlink_to(distribution / "lib")
    for name in ("standalone.conf", "client.conf"):
        conf = directory / "conf" / name
        text = re.sub("^metadataStoreUrl=$", f"metadataStoreUrl={store}", conf.read_text(), flags=re.MULTILINE)
        conf.write_text(ports.put_into(text))
    return directory


def is_ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).ok
    except requests.RequestException:
        return False


def environment_of_commands() -> dict[str, str]:
    return inherited_environment() | SMALL | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def try_page(ports: Ports, directory: Path, environment: Mapping[str, str]) -> None:
    standalone, serve, calls = scripts_of(ports.put_into(section_of(PAGE, "Try it beside `pulsar standalone`")))
    web, log = ports.admin, directory / "serve.log"
    with running(standalone + ports.of_bookie, directory, environment, directory / "standalone.log"):
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
    environment = environment_of_commands() | {
        "PULSAR_SIDECAR_LISTEN": listen,
        "PULSAR_SIDECAR_ADMIN_URL": f"http://{listen}",
    }
    try_page(ports, pulsar_directory(tmp_path / "pulsar", ports, "zk:127.0.0.1:2181"), environment)


def ledgers_of(topic: str, ports: Ports) -> set[int]:
    stats = requests.get(f"{ports.admin}/{topic}/internalStats", timeout=10).json()
    cursors = {cursor["cursorLedger"] for cursor in stats["cursors"].values()}
    return {each["ledgerId"] for each in stats["ledgers"]} | {ledger_id for ledger_id in cursors if ledger_id >= 0}


def is_free(lock: Path) -> bool:
    with lock.open("r+") as file, suppress(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def test_an_audit_of_a_copy_of_rocksdb_finds_what_was_lost_and_nothing_else(tmp_path: Path) -> None:
    ports = Ports(*free_ports(6))
    directory, environment = pulsar_directory(tmp_path / "pulsar", ports), environment_of_commands()
    start = f"bin/pulsar standalone -nss -nfw{ports.of_bookie}"
    with running(start, directory, environment, directory / "standalone.log"):  # until it is killed
        until(lambda: is_ready(f"{ports.admin}/brokers/health"), "standalone serves")
        with closing(pulsar.Client(f"pulsar://127.0.0.1:{ports.binary}")) as client:
            for name in ("kept", "lost", "deleted"):
                consumer, producer = client.subscribe(name, "s"), client.create_producer(name)
                producer.send(b"hello")
                consumer.acknowledge(consumer.receive(timeout_millis=30_000))
        assert requests.delete(f"{ports.admin}/persistent/public/default/deleted?force=true", timeout=30).ok
        lost = ledgers_of("persistent/public/default/lost", ports)
    until(lambda: is_free(directory / "data/metadata/LOCK"), "the standalone is dead")
    with Rdict(str(directory / "data/metadata"), Options(raw_mode=True)) as database:
        for path in ("lost", "lost/s"):
            del database[f"/managed-ledgers/public/default/persistent/{path}".encode()]
    (commands,) = scripts_of(section_of(AUDIT_PAGE, "A standalone on RocksDB"))
    audited = run(commands, directory, environment)
    assert audited.returncode == 2, audited.stdout
    found = pq.read_table(directory / "audit" / "orphan_ledgers")["ledger_id"].to_pylist()
    assert set(found) == lost, audited.stdout
    summary = json.loads((directory / "audit" / SUMMARY_NAME).read_text())
    assert (summary["missing"], summary["plan"]) == (0, None)
