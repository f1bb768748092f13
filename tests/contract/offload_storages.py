"""The storages that the suite of `OffloadedLedgers` runs on, each with the few things a test arranges.

Invariant: the real ones are reached the way the sidecar reaches them, and what a test put there is looked at without
the code under test.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import boto3  # type: ignore[import-untyped]
import requests
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from pulsar_sidecar.adapters.offload.object_stores import AccessKey, OffloadCredentials
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.features.ledger_deletion.ports import OffloadedLedgers
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName
from werkzeug.serving import make_server

from tests.fakes.map_files import write_map_file
from tests.fakes.offload import FAKE_BUCKET, FAKE_DRIVER, PARTS, FakeOffloadedLedgers
from tests.fakes.offloaded_objects import objects

CLUSTER = "local"
BUCKET = "pulsar-offload"
ACCESS_KEY = AccessKey("an-id", "a-secret")
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
        """Which of ``data`` and ``index`` are there."""
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


class S3Storage:
    """A bucket of a server that speaks S3, on the loopback address; the server forgets all it held before."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        requests.post(f"{endpoint}/moto-api/reset", timeout=10).raise_for_status()
        keys = {"aws_access_key_id": ACCESS_KEY.key_id, "aws_secret_access_key": ACCESS_KEY.secret}
        self._client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        self._client.create_bucket(Bucket=BUCKET)
        credentials = OffloadCredentials(s3=ACCESS_KEY)
        self.ledgers: OffloadedLedgers = ObjectStoreOffloadedLedgers(
            [f"s3://{BUCKET}@{endpoint}"], CLUSTER, credentials
        )

    def context(self, uid_msb: int, uid_lsb: int) -> OffloadContext:
        return OffloadContext(
            uid_msb,
            uid_lsb,
            "S3",
            {
                "managedLedgerOffloadDriver": "S3",
                "bucket": BUCKET,
                "region": "",
                "serviceEndpoint": self._endpoint,
            },
        )

    def elsewhere(self, context: OffloadContext) -> OffloadContext:
        """The same server under another name."""
        endpoint = self._endpoint.replace("127.0.0.1", "localhost")
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
            key = self._key(ledger_id, context, part)
            self._client.put_object(Bucket=BUCKET, Key=key, Body=_OBJECTS[part], Metadata=metadata)

    def content(self, ledger_id: LedgerId, context: OffloadContext, part: str) -> bytes:
        found = self._client.get_object(Bucket=BUCKET, Key=self._key(ledger_id, context, part))
        content: bytes = found["Body"].read()
        return content

    def cut(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName, part: str) -> None:
        key = self._key(ledger_id, context, part)
        found = self._client.get_object(Bucket=BUCKET, Key=key)
        shorter = found["Body"].read()[:-1]
        self._client.put_object(Bucket=BUCKET, Key=key, Body=shorter, Metadata=found["Metadata"])

    def put_foreign(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> None:
        self.put(ledger_id, context, managed_ledger, cluster_name="another")

    def parts(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> set[str]:
        return {part for part in PARTS if self._exists(self._key(ledger_id, context, part))}

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=key)

    def object_names(self) -> set[str]:
        """Every object's name."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {item["Key"] for page in pages for item in page.get("Contents", [])}

    def managed_ledger_of(self, key: str) -> str:
        """Return the name of the managed ledger whose offload wrote an object, by the object's own metadata."""
        return str(self._client.head_object(Bucket=BUCKET, Key=key)["Metadata"]["managedledgername"])

    def disappear(self) -> None:
        for key in self.object_names():
            self.remove(key)
        self._client.delete_bucket(Bucket=BUCKET)

    def _key(self, ledger_id: LedgerId, context: OffloadContext, part: str) -> str:
        return f"{attempt_of(context)}-ledger-{ledger_id}{'-index' if part == 'index' else ''}"

    def _exists(self, key: str) -> bool:
        try:
            self._client.head_object(Bucket=BUCKET, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
            return False
        return True


class DirectoryStorage:
    """A base directory of the filesystem driver."""

    def __init__(self, base: Path) -> None:
        self._base = base
        base.mkdir()
        (base / "another-tenant").mkdir()
        self.ledgers: OffloadedLedgers = ObjectStoreOffloadedLedgers([f"file://{base}"], CLUSTER)

    def context(self, uid_msb: int, uid_lsb: int) -> OffloadContext:
        return OffloadContext(uid_msb, uid_lsb, "filesystem", {"storageBasePath": f"file://{self._base}"})

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
    """What an S3 server answers 503 to for now, as a bucket does that is over its limits."""

    deletions: bool = False
    indexes: bool = False
    """Writes of index objects, which come last in an offload."""

    def refuses(self, environ: Mapping[str, Any]) -> bool:
        """Whether this request is refused; several objects are deleted by a POST."""
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]
        is_deletion = method == "DELETE" or (method == "POST" and query.startswith("delete"))
        is_index = method == "PUT" and path.endswith("-index")
        return (self.deletions and is_deletion) or (self.indexes and is_index)


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


class _OldSignatures(DomainDispatcherApplication):  # type: ignore[misc]  # moto has no types
    """Brokers sign in S3's second version, and moto takes one with four slashes for one in the fourth: then it fails.

    That is one signature of a thousand.
    """

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(create_backend_app)
        self._refusals = refusals

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self._refusals.refuses(environ):
            start_response("503 Slow Down", [("Content-Length", "0")])
            return []
        answer: Iterable[bytes] = super().__call__(environ, start_response)
        return answer

    def infer_service_region_host(self, environ: dict[str, Any], path: str) -> str | None:
        if environ.get("HTTP_AUTHORIZATION", "").startswith("AWS "):
            return None  # what moto itself answers where it does recognise that version, and then assumes S3
        answer: str | None = super().infer_service_region_host(environ, path)
        return answer
