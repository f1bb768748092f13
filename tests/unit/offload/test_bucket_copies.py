"""No conclusion of absence, success or leak from buckets that lie, refuse, break or are missing."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import obstore.exceptions
import pytest
from pulsar_sidecar.adapters.offload.object_stores import AccessKey, OffloadCredentials
from pulsar_sidecar.adapters.offload.offloaded_ledgers import CLIENT_ERRORS, ObjectStoreOffloadedLedgers
from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName

from tests.fakes import offloaded_objects
from tests.fakes.http_servers import Answer
from tests.unit.offload.scripted_bucket import (
    ABSENT,
    EMPTY_LISTING,
    Request,
    ScriptedBucket,
    present,
    scripted_bucket,
)

LEDGER = LedgerId(4)
ORDERS = ManagedLedgerName("public/default/persistent/orders")
KEY = "/copies/00000000-0000-0001-0000-000000000002-ledger-4"
SECRET = "c2VjcmV0LXNlY3JldA=="
CREDENTIALS = OffloadCredentials(s3=AccessKey("an-id", SECRET), azureblob=AccessKey("acme", SECRET))
OURS = {
    "s3managedledgeroffloaderformatversion": "1",
    "managedledgername": ORDERS,
    "pulsarclustername": "local",
}
LISTED = Answer(200, EMPTY_LISTING, {"Content-Type": "application/xml"})
DONE = Answer(204)


def listing_of(*paths: str) -> Answer:
    contents = "".join(
        f"<Contents><Key>{path.removeprefix('/copies/')}</Key><LastModified>2026-11-20T11:35:40.000Z</LastModified>"
        '<ETag>"x"</ETag><Size>1</Size></Contents>'
        for path in paths
    )
    return replace(
        LISTED, body=EMPTY_LISTING.replace(b"</ListBucketResult>", f"{contents}</ListBucketResult>".encode())
    )


@pytest.fixture
def bucket() -> Iterator[ScriptedBucket]:
    with scripted_bucket() as scripted:
        yield scripted


def delete(bucket: ScriptedBucket) -> OffloadDeletion:
    ledgers = ObjectStoreOffloadedLedgers([f"s3://copies@{bucket.url}"], "local", CREDENTIALS)
    return ledgers.delete_offloaded(LEDGER, context_in(bucket), ORDERS)


def is_whole(bucket: ScriptedBucket) -> bool:
    ledgers = ObjectStoreOffloadedLedgers([f"s3://copies@{bucket.url}"], "local", CREDENTIALS)
    return ledgers.is_whole(LEDGER, context_in(bucket), ORDERS)


def context_in(bucket: ScriptedBucket) -> OffloadContext:
    return OffloadContext(1, 2, "S3", {"bucket": "copies", "region": "", "serviceEndpoint": bucket.url})


def failure(bucket: ScriptedBucket) -> SidecarError:
    with pytest.raises(SidecarError) as caught:
        delete(bucket)
    return caught.value


def objects(answer_to_delete: Answer, *, forget: bool) -> Callable[[Request], Answer]:
    """Both objects there; after a DELETE an object is forgotten or not."""
    held = {
        KEY: present("x-amz-meta-", role="data", **OURS),
        f"{KEY}-index": present("x-amz-meta-", role="index", **OURS),
    }

    def answer(request: Request) -> Answer:
        if request.method == "DELETE":
            if forget:
                held.pop(request.path, None)
            return answer_to_delete
        return held.get(request.path, ABSENT) if request.method == "HEAD" else listing_of(*held)

    return answer


def test_both_objects_are_looked_at_deleted_and_looked_at_again(bucket: ScriptedBucket) -> None:
    bucket.answer = objects(DONE, forget=True)
    assert delete(bucket) is OffloadDeletion.DELETED
    assert [(request.method, request.path) for request in bucket.requests] == [
        ("HEAD", KEY),
        ("HEAD", f"{KEY}-index"),
        ("DELETE", KEY),
        ("DELETE", f"{KEY}-index"),
        ("GET", "/copies"),
    ]


def test_object_that_remains_after_deletion_is_an_error(bucket: ScriptedBucket) -> None:
    bucket.answer = objects(DONE, forget=False)
    error = failure(bucket)
    assert isinstance(error, TemporaryError)
    assert "still there" in str(error)


def test_a_server_that_ignores_where_a_listing_starts_is_listed_up_to_the_copy(bucket: ScriptedBucket) -> None:
    """Behaviour of fake-gcs-server."""
    before = [f"/copies/00000000-0000-0001-0000-000000000001-ledger-{number:03}" for number in range(300)]
    bucket.answer = lambda request: listing_of(*before, KEY) if request.path == "/copies" else ABSENT
    with pytest.raises(TemporaryError, match=r"lists .* but reports that it has no such object"):
        delete(bucket)


@pytest.mark.parametrize("forget", [True, False])
def test_a_deletion_without_a_clear_answer_is_unknown(bucket: ScriptedBucket, forget: bool) -> None:
    bucket.answer = objects(Answer(400), forget=forget)
    assert isinstance(failure(bucket), OutcomeUnknownError)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_deletion_is_temporary(bucket: ScriptedBucket, status: int) -> None:
    bucket.answer = objects(Answer(status), forget=False)
    error = failure(bucket)
    assert isinstance(error, TemporaryError)
    assert "refuses" in str(error)


def test_a_lost_look_after_a_deletion_is_unknown(bucket: ScriptedBucket) -> None:
    working = objects(DONE, forget=True)
    bucket.answer = lambda request: Answer(403) if bucket.methods()[-3:-1] == ["DELETE"] * 2 else working(request)
    assert isinstance(failure(bucket), OutcomeUnknownError)


@pytest.mark.parametrize("status", [400, 401, 403])
def test_refused_request_is_not_absence(bucket: ScriptedBucket, status: int) -> None:
    bucket.answer = lambda _: Answer(status)
    assert isinstance(failure(bucket), TemporaryError)


@pytest.mark.parametrize("answer", [Answer(404), Answer(403), Answer(200, body=b"<html><br></html>")])
def test_unlistable_bucket_is_not_absence(bucket: ScriptedBucket, answer: Answer) -> None:
    bucket.answer = lambda request: answer if request.method == "GET" else ABSENT
    assert isinstance(failure(bucket), TemporaryError)


def test_listed_but_denied_object_is_not_absence(bucket: ScriptedBucket) -> None:
    listing = listing_of(KEY)
    bucket.answer = lambda request: listing if request.method == "GET" else ABSENT
    error = failure(bucket)
    assert isinstance(error, TemporaryError)
    assert "lists" in str(error)


def test_foreign_index_prevents_deletion(bucket: ScriptedBucket) -> None:
    held = {
        KEY: present("x-amz-meta-", role="data", **OURS),
        f"{KEY}-index": present("x-amz-meta-", role="index", **(OURS | {"pulsarclustername": "another"})),
    }
    bucket.answer = lambda request: held.get(request.path, ABSENT)
    error = failure(bucket)
    assert isinstance(error, PermanentError)
    assert "pulsarclustername is 'another'" in str(error)
    assert "DELETE" not in bucket.methods()


def test_unreachable_bucket_raises_temporary_error() -> None:
    with scripted_bucket() as gone:
        pass
    assert isinstance(failure(gone), TemporaryError)


def test_errors_contain_no_secret(bucket: ScriptedBucket) -> None:
    bucket.answer = lambda _: Answer(403)
    assert SECRET not in "".join(traceback.format_exception(failure(bucket)))
    assert SECRET not in repr(CREDENTIALS)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_BUCKET"])
def test_the_environment_does_not_redirect(bucket: ScriptedBucket, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    bucket.answer = objects(DONE, forget=True)
    assert delete(bucket) is OffloadDeletion.DELETED


@pytest.mark.parametrize(
    ("scheme", "prefix", "driver"),
    [("gs", "x-goog-meta-", "google-cloud-storage"), ("azure", "x-ms-meta-", "azureblob")],
)
def test_google_and_azure_name_the_writer_of_an_object(
    bucket: ScriptedBucket, monkeypatch: pytest.MonkeyPatch, scheme: str, prefix: str, driver: str
) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-token")
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:1")
    foreign = present(prefix, role="data", **(OURS | {"pulsarclustername": "another"}))
    bucket.answer = lambda _: foreign
    ledgers = ObjectStoreOffloadedLedgers([f"{scheme}://copies@{bucket.url}"], "local", CREDENTIALS)
    metadata = {"bucket": "copies", "region": "", "serviceEndpoint": bucket.url if scheme == "gs" else ""}
    with pytest.raises(PermanentError, match="pulsarclustername"):
        ledgers.delete_offloaded(LEDGER, OffloadContext(1, 2, driver, metadata), ORDERS)
    assert {request.path for request in bucket.requests} == {KEY, f"{KEY}-index"}


WRITTEN = offloaded_objects.objects()


def copy_with(owner: str = "local", unreadable: str = "", **changed: bytes) -> Callable[[Request], Answer]:
    """Both objects there; of ``unreadable`` only a HEAD is answered, and ``changed`` objects have other bytes."""
    parts = {KEY: "data", f"{KEY}-index": "index"}

    def answer(request: Request) -> Answer:
        part = parts[request.path]
        ours = OURS | {"pulsarclustername": owner if part == "index" else "local"}
        headers = present("x-amz-meta-", role=part, **ours).headers
        body = changed.get(part, WRITTEN[part])
        if request.method == "HEAD":
            return Answer(200, body, headers)
        if part == unreadable:
            return Answer(403)
        first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        found = body[first : last + 1]
        return Answer(206, found, {**headers, "Content-Range": f"bytes {first}-{first + len(found) - 1}/{len(body)}"})

    return answer


def test_the_index_and_two_blocks_of_a_copy_are_read(bucket: ScriptedBucket) -> None:
    bucket.answer = copy_with()
    assert is_whole(bucket)
    read = [request.path for request in bucket.requests if request.method == "GET"]
    assert (bucket.methods()[:2], read) == (["HEAD", "HEAD"], [f"{KEY}-index", KEY, KEY])


def test_a_block_of_several_requests_is_read(bucket: ScriptedBucket) -> None:
    """The client's reads end where a request ended."""
    bucket.answer = copy_with(**offloaded_objects.objects([[bytes(3 * 1024 * 1024)] * 5]))
    assert is_whole(bucket)
    assert bucket.methods().count("GET") == 3


@pytest.mark.parametrize("part", ["data", "index"])
@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_an_object_that_ends_early_makes_no_whole_copy(bucket: ScriptedBucket, part: str, length: int) -> None:
    bucket.answer = copy_with(**{part: WRITTEN[part][:length]})
    assert not is_whole(bucket)


def test_a_block_of_other_bytes_makes_no_whole_copy(bucket: ScriptedBucket) -> None:
    for at in (0, len(WRITTEN["data"]) - 10):
        bucket.answer = copy_with(data=WRITTEN["data"][:at] + b"x" + WRITTEN["data"][at + 1 :])
        assert not is_whole(bucket)


@pytest.mark.parametrize("part", ["data", "index"])
def test_an_object_that_cannot_be_read_is_not_known(bucket: ScriptedBucket, part: str) -> None:
    bucket.answer = copy_with(unreadable=part)
    with pytest.raises(TemporaryError):
        is_whole(bucket)


def test_copy_with_a_foreign_index_is_refused(bucket: ScriptedBucket) -> None:
    bucket.answer = copy_with(owner="another")
    with pytest.raises(PermanentError, match="pulsarclustername is 'another'"):
        is_whole(bucket)


def test_every_error_of_the_client_is_translated() -> None:
    exported = [item for item in vars(obstore.exceptions).values() if isinstance(item, type)]
    errors = [item for item in exported if issubclass(item, Exception)]
    assert len(errors) >= 12
    assert [item for item in errors if not issubclass(item, CLIENT_ERRORS)] == []
