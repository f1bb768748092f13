"""The storages that the suite of `OffloadedLedgers` runs on, each with the few things a test arranges.

Invariant: the real ones are reached the way the sidecar reaches them, and what a test put there is looked at without
the code under test.
"""

import hmac
import json
import re
import shutil
import threading
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol
from uuid import UUID

import boto3  # type: ignore[import-untyped]
import pytest
import requests
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from pulsar_sidecar.adapters.offload.object_stores import AccessKey, OffloadCredentials
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.features.ledger_deletion.ports import OffloadedLedgers
from pulsar_sidecar.local_cluster.processes import LOOPBACK, end, free_ports, spawn
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName
from pulsar_sidecar.ownership.offload_locations import OffloadDriver, driver_metadata_of, parse_location
from urllib3.fields import RequestField
from urllib3.filepost import encode_multipart_formdata
from werkzeug.serving import make_server

from tests.cluster.go_tools import GoTool, tool_or_skip
from tests.cluster.patience import until
from tests.fakes.map_files import write_map_file
from tests.fakes.offload import FAKE_BUCKET, FAKE_DRIVER, PARTS, FakeOffloadedLedgers
from tests.fakes.offloaded_objects import objects

_DELETED = b'<?xml version="1.0"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
CLUSTER = "local"
BUCKET = "pulsar-offload"
ACCESS_KEY = AccessKey("an-id", "a-secret")
AZURITE_KEY = AccessKey(
    "devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own account, which its documentation names."""
NEWLINES = "\n" * 9
"""Headers of a signed request that are left out."""
FAKE_GCS_SERVER = GoTool("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "v1.56.1")
_OBJECTS = objects()


def attempt_of(context: OffloadContext) -> str:
    """The attempt's UUID as Java prints it."""
    halves = (half.to_bytes(8, "big", signed=True) for half in (context.uid_msb, context.uid_lsb))
    return str(UUID(bytes=b"".join(halves)))


class OffloadStorage(Protocol):
    """A place for copies, and the port over it."""

    ledgers: OffloadedLedgers

    def context(self, uid_msb: int, uid_lsb: int) -> OffloadContext:
        """A context of a copy in this place."""
        ...

    def elsewhere(self, context: OffloadContext) -> OffloadContext:
        """The same copy at a place that the sidecar may not touch."""
        ...

    def put(
        self,
        ledger_id: LedgerId,
        context: OffloadContext,
        managed_ledger: ManagedLedgerName,
        parts: Collection[str] = PARTS,
    ) -> None:
        """Put a copy there as Pulsar's offloader does."""
        ...

    def cut(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName, part: str) -> None:
        """Take the last byte off a part."""
        ...

    def put_foreign(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> None:
        """Put something of the same name there that Pulsar's offloader of this cluster did not write."""
        ...

    def parts(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> set[str]:
        """Return the existing ones of ``data`` and ``index``."""
        ...

    def disappear(self) -> None:
        """Let the bucket or the base directory be missing."""
        ...


class FakeStorage:
    """The fake."""

    def __init__(self) -> None:
        self.fake = FakeOffloadedLedgers(CLUSTER)
        self.ledgers: OffloadedLedgers = self.fake

    def context(self, uid_msb: int, uid_lsb: int) -> OffloadContext:
        return OffloadContext(uid_msb, uid_lsb, FAKE_DRIVER, {"bucket": FAKE_BUCKET, "region": "us-east-1"})

    def elsewhere(self, context: OffloadContext) -> OffloadContext:
        return replace(context, driver_metadata={**context.driver_metadata, "bucket": "elsewhere"})

    def put(
        self,
        ledger_id: LedgerId,
        context: OffloadContext,
        managed_ledger: ManagedLedgerName,
        parts: Collection[str] = PARTS,
    ) -> None:
        self.fake.put(ledger_id, context, managed_ledger, parts=parts)

    def cut(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName, part: str) -> None:
        self.fake.cut(ledger_id, context)

    def put_foreign(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> None:
        self.fake.put(ledger_id, context, managed_ledger, cluster_name="another")

    def parts(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> set[str]:
        return self.fake.parts(ledger_id, context)

    def disappear(self) -> None:
        self.fake.fail_next(TemporaryError("the bucket cannot be asked"))


class BucketStorage(ABC):
    """A bucket of a server on the loopback address, empty at first, with objects as Pulsar writes them."""

    driver: ClassVar[OffloadDriver]

    def __init__(self, location: str, credentials: OffloadCredentials) -> None:
        self.location = location
        self.credentials = credentials
        self.ledgers: OffloadedLedgers = ObjectStoreOffloadedLedgers([location], CLUSTER, credentials)

    @abstractmethod
    def read(self, key: str) -> tuple[bytes, Mapping[str, str]]:
        """Return an object's content and its user metadata."""

    @abstractmethod
    def write(self, key: str, content: bytes, metadata: Mapping[str, str]) -> None: ...

    @abstractmethod
    def remove(self, key: str) -> None: ...

    @abstractmethod
    def object_names(self) -> set[str]: ...

    @abstractmethod
    def remove_bucket(self) -> None:
        """Remove the bucket, which is empty."""

    def context(self, uid_msb: int, uid_lsb: int) -> OffloadContext:
        name, place = self.driver.value, parse_location(self.location).place
        return OffloadContext(uid_msb, uid_lsb, name, driver_metadata_of(name, place, ""))

    def elsewhere(self, context: OffloadContext) -> OffloadContext:
        """The same server under another name."""
        endpoint = context.driver_metadata["serviceEndpoint"].replace("127.0.0.1", "localhost")
        return replace(context, driver_metadata={**context.driver_metadata, "serviceEndpoint": endpoint})

    def put(
        self,
        ledger_id: LedgerId,
        context: OffloadContext,
        managed_ledger: ManagedLedgerName,
        parts: Collection[str] = PARTS,
        cluster_name: str = CLUSTER,
    ) -> None:
        for part in parts:
            metadata = {
                "role": part,
                "managedledgername": managed_ledger,
                "pulsarclustername": cluster_name,
                "s3managedledgeroffloaderformatversion": "1",
                "s3managedledgeroffloadersoftwareversion": "4.0.8",
            }
            self.write(_key(ledger_id, context, part), _OBJECTS[part], metadata)

    def content(self, ledger_id: LedgerId, context: OffloadContext, part: str) -> bytes:
        return self.read(_key(ledger_id, context, part))[0]

    def cut(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName, part: str) -> None:
        key = _key(ledger_id, context, part)
        content, metadata = self.read(key)
        self.write(key, content[:-1], metadata)

    def put_foreign(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> None:
        self.put(ledger_id, context, managed_ledger, cluster_name="another")

    def parts(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> set[str]:
        names = self.object_names()
        return {part for part in PARTS if _key(ledger_id, context, part) in names}

    def managed_ledger_of(self, key: str) -> str:
        """Return the name of the managed ledger whose offload wrote an object, by the object's own metadata."""
        return self.read(key)[1]["managedledgername"]

    def clear(self) -> None:
        for key in self.object_names():
            self.remove(key)

    def disappear(self) -> None:
        self.clear()
        self.remove_bucket()


def _key(ledger_id: LedgerId, context: OffloadContext, part: str) -> str:
    return f"{attempt_of(context)}-ledger-{ledger_id}{'-index' if part == 'index' else ''}"


class S3Storage(BucketStorage):
    """A bucket of a server that speaks S3; the server forgets all it held before."""

    driver = OffloadDriver.S3

    def __init__(self, endpoint: str) -> None:
        super().__init__(f"s3://{BUCKET}@{endpoint}", OffloadCredentials(s3=ACCESS_KEY))
        requests.post(f"{endpoint}/moto-api/reset", timeout=10).raise_for_status()
        keys = {"aws_access_key_id": ACCESS_KEY.key_id, "aws_secret_access_key": ACCESS_KEY.secret}
        self._client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        self._client.create_bucket(Bucket=BUCKET)

    def read(self, key: str) -> tuple[bytes, Mapping[str, str]]:
        found = self._client.get_object(Bucket=BUCKET, Key=key)
        return found["Body"].read(), found["Metadata"]

    def write(self, key: str, content: bytes, metadata: Mapping[str, str]) -> None:
        self._client.put_object(Bucket=BUCKET, Key=key, Body=content, Metadata=metadata)

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=key)

    def object_names(self) -> set[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {item["Key"] for page in pages for item in page.get("Contents", [])}

    def remove_bucket(self) -> None:
        self._client.delete_bucket(Bucket=BUCKET)


class GcsStorage(BucketStorage):
    """A bucket of fake-gcs-server, by its JSON API, which Pulsar's offloader uses too."""

    driver = OffloadDriver.GOOGLE_CLOUD_STORAGE

    def __init__(self, endpoint: str, key_file: Path) -> None:
        key = {"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": True}
        key_file.write_text(json.dumps(key))
        super().__init__(f"gs://{BUCKET}@{endpoint}", OffloadCredentials(gcs_service_account_key_file=key_file))
        self._endpoint = endpoint
        requests.post(f"{endpoint}/storage/v1/b", json={"name": BUCKET}, timeout=10)
        self.clear()

    def read(self, key: str) -> tuple[bytes, Mapping[str, str]]:
        content = self._call("GET", f"/o/{key}", params={"alt": "media"}).content
        return content, self._call("GET", f"/o/{key}").json()["metadata"]

    def write(self, key: str, content: bytes, metadata: Mapping[str, str]) -> None:
        about = json.dumps({"name": key, "metadata": metadata}).encode()
        body, kind = encode_multipart_formdata(
            [
                RequestField("about", about, headers={"Content-Type": "application/json"}),
                RequestField("content", content, headers={"Content-Type": "application/octet-stream"}),
            ]
        )
        headers = {"Content-Type": kind.replace("form-data", "related")}
        self._call("POST", "/o", "/upload", params={"uploadType": "multipart"}, data=body, headers=headers)

    def remove(self, key: str) -> None:
        self._call("DELETE", f"/o/{key}")

    def object_names(self) -> set[str]:
        return {item["name"] for item in self._call("GET", "/o").json().get("items", [])}

    def remove_bucket(self) -> None:
        self._call("DELETE", "")

    def _call(self, method: str, path: str, kind: str = "", **request: Any) -> requests.Response:
        url = f"{self._endpoint}{kind}/storage/v1/b/{BUCKET}{path}"
        answer = requests.request(method, url, timeout=10, **request)
        answer.raise_for_status()
        return answer


class AzureStorage(BucketStorage):
    """A container of Azurite."""

    driver = OffloadDriver.AZURE_BLOB

    def __init__(self, endpoint: str) -> None:
        super().__init__(f"azure://{BUCKET}@{endpoint}/{AZURITE_KEY.key_id}", OffloadCredentials(azureblob=AZURITE_KEY))
        self._endpoint = endpoint
        if self._call("PUT", "", {"restype": "container"}).status_code == requests.codes.conflict:
            self.clear()

    def elsewhere(self, context: OffloadContext) -> OffloadContext:
        """Another container: contexts of Azure name no server."""
        return replace(context, driver_metadata={**context.driver_metadata, "bucket": "elsewhere"})

    def read(self, key: str) -> tuple[bytes, Mapping[str, str]]:
        found, prefix = self._call("GET", f"/{key}"), "x-ms-meta-"
        found.raise_for_status()
        named = {name.lower(): value for name, value in found.headers.items()}
        return found.content, {name[len(prefix) :]: named[name] for name in named if name.startswith(prefix)}

    def write(self, key: str, content: bytes, metadata: Mapping[str, str]) -> None:
        headers = {"x-ms-blob-type": "BlockBlob", **{f"x-ms-meta-{name}": text for name, text in metadata.items()}}
        self._call("PUT", f"/{key}", headers=headers, content=content).raise_for_status()

    def remove(self, key: str) -> None:
        self._call("DELETE", f"/{key}").raise_for_status()

    def object_names(self) -> set[str]:
        listed = self._call("GET", "", {"restype": "container", "comp": "list"})
        listed.raise_for_status()
        return set(re.findall("<Name>([^<]*)</Name>", listed.text))

    def remove_bucket(self) -> None:
        self._call("DELETE", "", {"restype": "container"}).raise_for_status()

    def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
    ) -> requests.Response:
        """Send a request with a signature of Azure's scheme Shared Key."""
        path = f"/{AZURITE_KEY.key_id}/{BUCKET}{path}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
        named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        about = f"/{AZURITE_KEY.key_id}{path}" + "".join(f"\n{name}:{params[name]}" for name in sorted(params))
        length = str(len(content) or "")
        signed = hmac.digest(
            b64decode(AZURITE_KEY.secret), f"{method}\n\n\n{length}{NEWLINES}{named}{about}".encode(), "sha256"
        )
        signature = f"SharedKey {AZURITE_KEY.key_id}:{b64encode(signed).decode()}"
        url = f"{self._endpoint}{path}"
        headers = {**headers, "Authorization": signature}
        return requests.request(method, url, params=params, headers=headers, data=content, timeout=10)


class DirectoryStorage:
    """A base directory of the filesystem driver."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self.location, self.credentials = f"file://{base}", OffloadCredentials()
        base.mkdir()
        (base / "another-tenant").mkdir()
        self.ledgers: OffloadedLedgers = ObjectStoreOffloadedLedgers([self.location], CLUSTER)

    def context(self, uid_msb: int, uid_lsb: int) -> OffloadContext:
        return OffloadContext(uid_msb, uid_lsb, "filesystem", {"storageBasePath": self.location})

    def elsewhere(self, context: OffloadContext) -> OffloadContext:
        """The same directory through a symbolic link beside it."""
        link = self._base.with_name("link")
        link.symlink_to(self._base)
        return replace(context, driver_metadata={"storageBasePath": f"file://{link}"})

    def put(
        self,
        ledger_id: LedgerId,
        context: OffloadContext,
        managed_ledger: ManagedLedgerName,
        parts: Collection[str] = PARTS,
    ) -> None:
        directory = self._directory(ledger_id, context, managed_ledger)
        directory.mkdir(parents=True)
        for part in parts:
            write_map_file(directory, part)

    def cut(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName, part: str) -> None:
        path = self._directory(ledger_id, context, managed_ledger) / part
        path.write_bytes(path.read_bytes()[:-1])

    def put_foreign(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> None:
        self.put(ledger_id, context, managed_ledger)
        (self._directory(ledger_id, context, managed_ledger) / "notes.txt").write_text("mine")

    def parts(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> set[str]:
        directory = self._directory(ledger_id, context, managed_ledger)
        found = {path.name for path in directory.iterdir()} if directory.exists() else set()
        return found & PARTS

    def disappear(self) -> None:
        self._base.rename(self._base.with_name("unmounted"))

    def _directory(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> Path:
        return self._base / managed_ledger / f"{ledger_id}-{attempt_of(context)}"


@dataclass(slots=True)
class Refusals:
    """Requests to which an S3 server returns 503, like a bucket over its limits."""

    deletions: bool = False
    indexes: bool = False
    """Writes of index objects, which come last in an offload."""
    silent: bool = False
    """True to confirm deletions without deleting."""

    def answer(self, environ: Mapping[str, Any]) -> str | None:
        """Return the status of a response in place of the server's; several objects are deleted by a POST."""
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]
        is_deletion = method == "DELETE" or (method == "POST" and query.startswith("delete"))
        if is_deletion and self.silent:
            return "200 OK"
        is_index = method == "PUT" and path.endswith("-index")
        return "503 Slow Down" if (self.deletions and is_deletion) or (self.indexes and is_index) else None


@contextmanager
def s3_server(refusals: Refusals | None = None) -> Iterator[str]:
    """The URL of an S3 server of one's own."""
    application = _OldSignatures(refusals or Refusals())
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def gcs_server(directory: Path) -> Iterator[str]:
    """The URL of fake-gcs-server, which listens with TLS by default."""
    program = tool_or_skip(FAKE_GCS_SERVER)
    with _process(directory, lambda port: [
        *(str(program), "-backend", "memory", "-scheme", "http", "-host", LOOPBACK, "-port", port),
        *("-public-host", f"{LOOPBACK}:{port}", "-external-url", f"http://{LOOPBACK}:{port}"),
    ]) as endpoint:  # fmt: skip
        yield endpoint


@contextmanager
def azure_server(directory: Path) -> Iterator[str]:
    """The URL of Azurite; the client uses a later version of the API than it supports."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("no azurite-blob: npm install --global azurite@3.35.0")
    with _process(directory, lambda port: [
        *(program, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"),
        *("--blobHost", LOOPBACK, "--blobPort", port),
    ]) as endpoint:  # fmt: skip
        yield endpoint


@contextmanager
def _process(directory: Path, command: Callable[[str], list[str]]) -> Iterator[str]:
    (port,) = free_ports(1)
    endpoint = f"http://{LOOPBACK}:{port}"
    process = spawn(command(str(port)), {}, directory, directory / "server.log")

    def answers() -> bool:
        with suppress(requests.ConnectionError):
            return requests.get(endpoint, timeout=5).status_code > 0
        return False

    try:
        until(answers, f"{endpoint} answers")
        yield endpoint
    finally:
        end([process], SystemClock())


class _OldSignatures(DomainDispatcherApplication):  # type: ignore[misc]  # moto has no types
    """Brokers sign in S3's second version, and moto takes one with four slashes for one in the fourth: then it fails.

    That is one signature of a thousand.
    """

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(create_backend_app)
        self._refusals = refusals

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status = self._refusals.answer(environ)
        if status is not None:
            start_response(status, [("Content-Length", str(len(_DELETED))), ("Content-Type", "application/xml")])
            return [_DELETED]
        answer: Iterable[bytes] = super().__call__(environ, start_response)
        return answer

    def infer_service_region_host(self, environ: dict[str, Any], path: str) -> str | None:
        if environ.get("HTTP_AUTHORIZATION", "").startswith("AWS "):
            return None  # what moto itself answers where it does recognise that version, and then assumes S3
        answer: str | None = super().infer_service_region_host(environ, path)
        return answer
