"""What no absence, no success and no leak may be concluded from: buckets that lie, refuse, break or are missing."""

import struct
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import obstore.exceptions
import pytest
from pulsar_sidecar.adapters.offload.object_stores import AccessKey, OffloadCredentials
from pulsar_sidecar.adapters.offload.offloaded_ledgers import CLIENT_ERRORS, ObjectStoreOffloadedLedgers
from pulsar_sidecar.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName

from tests.unit.offload.scripted_bucket import (
    ABSENT,
    EMPTY_LISTING,
    Answer,
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
LISTED = Answer(200, {"Content-Type": "application/xml"}, EMPTY_LISTING)
DONE = Answer(204)


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
        return held.get(request.path, ABSENT) if request.method == "HEAD" else LISTED

    return answer


def test_both_objects_are_looked_at_deleted_and_looked_at_again(bucket: ScriptedBucket) -> None:
    bucket.answer = objects(DONE, forget=True)
    assert delete(bucket) is OffloadDeletion.DELETED
    assert [(request.method, request.path) for request in bucket.requests] == [
        ("HEAD", KEY),
        ("HEAD", f"{KEY}-index"),
        ("DELETE", KEY),
        ("DELETE", f"{KEY}-index"),
        ("HEAD", KEY),
        ("HEAD", f"{KEY}-index"),
    ]


def test_a_deletion_that_did_not_happen_is_no_success(bucket: ScriptedBucket) -> None:
    bucket.answer = objects(DONE, forget=False)
    error = failure(bucket)
    assert isinstance(error, TemporaryError)
    assert "still there" in str(error)


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
def test_a_refused_look_is_no_absence(bucket: ScriptedBucket, status: int) -> None:
    bucket.answer = lambda _: Answer(status)
    assert isinstance(failure(bucket), TemporaryError)


@pytest.mark.parametrize("answer", [Answer(404), Answer(403), Answer(200, body=b"<html><br></html>")])
def test_a_bucket_that_cannot_be_listed_is_no_absence(bucket: ScriptedBucket, answer: Answer) -> None:
    bucket.answer = lambda request: answer if request.method == "GET" else ABSENT
    assert isinstance(failure(bucket), TemporaryError)


def test_an_object_that_is_listed_and_denied_is_no_absence(bucket: ScriptedBucket) -> None:
    contents = (
        f"<Contents><Key>{KEY.removeprefix('/copies/')}</Key><LastModified>2026-11-20T11:35:40.000Z</LastModified>"
        '<ETag>"x"</ETag><Size>1</Size></Contents></ListBucketResult>'
    )
    listing = Answer(200, LISTED.headers, EMPTY_LISTING.replace(b"</ListBucketResult>", contents.encode()))
    bucket.answer = lambda request: listing if request.method == "GET" else ABSENT
    error = failure(bucket)
    assert isinstance(error, TemporaryError)
    assert "lists" in str(error)


def test_nothing_is_deleted_when_only_the_index_is_foreign(bucket: ScriptedBucket) -> None:
    held = {
        KEY: present("x-amz-meta-", role="data", **OURS),
        f"{KEY}-index": present("x-amz-meta-", role="index", **(OURS | {"pulsarclustername": "another"})),
    }
    bucket.answer = lambda request: held.get(request.path, ABSENT)
    error = failure(bucket)
    assert isinstance(error, PermanentError)
    assert "pulsarclustername is 'another'" in str(error)
    assert "DELETE" not in bucket.methods()


def test_no_listener() -> None:
    with scripted_bucket() as gone:
        pass
    assert isinstance(failure(gone), TemporaryError)


def test_no_secret_is_in_an_error(bucket: ScriptedBucket) -> None:
    bucket.answer = lambda _: Answer(403)
    assert SECRET not in "".join(traceback.format_exception(failure(bucket)))
    assert SECRET not in repr(CREDENTIALS)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_BUCKET"])
def test_the_environment_does_not_redirect(bucket: ScriptedBucket, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    bucket.answer = objects(DONE, forget=True)
    assert delete(bucket) is OffloadDeletion.DELETED


def test_google_names_the_writer_of_an_object(bucket: ScriptedBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-token")
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:1")
    foreign = present("x-goog-meta-", role="data", **(OURS | {"pulsarclustername": "another"}))
    bucket.answer = lambda _: foreign
    ledgers = ObjectStoreOffloadedLedgers([f"gs://copies@{bucket.url}"], "local", CREDENTIALS)
    metadata = {"bucket": "copies", "region": "", "serviceEndpoint": bucket.url}
    with pytest.raises(PermanentError, match="pulsarclustername"):
        ledgers.delete_offloaded(LEDGER, OffloadContext(1, 2, "google-cloud-storage", metadata), ORDERS)
    assert {request.path for request in bucket.requests} == {KEY, f"{KEY}-index"}


def test_azure_names_the_writer_of_an_object(bucket: ScriptedBucket) -> None:
    foreign = present("x-ms-meta-", role="data", **(OURS | {"pulsarclustername": "another"}))
    bucket.answer = lambda _: foreign
    ledgers = ObjectStoreOffloadedLedgers([f"azure://copies@{bucket.url}"], "local", CREDENTIALS)
    context = OffloadContext(1, 2, "azureblob", {"bucket": "copies", "region": "", "serviceEndpoint": ""})
    with pytest.raises(PermanentError, match="pulsarclustername"):
        ledgers.delete_offloaded(LEDGER, context, ORDERS)
    assert {request.path for request in bucket.requests} == {KEY, f"{KEY}-index"}


DATA_BYTES = 343
INDEX = struct.Struct(">IiqqiI")
REST_OF_INDEX = bytes(172 + 20)
WRITTEN = (0xDE47DE47, 224, DATA_BYTES, 128, 1, 172)
"""The beginning of the index that a broker of 4.0.8 wrote for a ledger of five entries."""


def copy_with(index: bytes, answer_to_get: Answer | None = None, owner: str = "local") -> Callable[[Request], Answer]:
    """Both objects there; the index is read from its beginning."""
    ours = OURS | {"pulsarclustername": owner}
    held = {
        KEY: replace(present("x-amz-meta-", role="data", **OURS), body=bytes(DATA_BYTES)),
        f"{KEY}-index": replace(present("x-amz-meta-", role="index", **ours), body=index),
    }

    def answer(request: Request) -> Answer:
        if request.method == "HEAD":
            return held.get(request.path, ABSENT)
        if answer_to_get is not None:
            return answer_to_get
        assert (request.path, request.headers["range"]) == (f"{KEY}-index", "bytes=0-31")
        part = index[:32]
        length = {"Content-Range": f"bytes 0-{len(part) - 1}/{len(index)}"}
        return Answer(206, {**held[request.path].headers, **length}, part)

    return answer


def test_a_whole_copy_takes_three_requests(bucket: ScriptedBucket) -> None:
    bucket.answer = copy_with(INDEX.pack(*WRITTEN) + REST_OF_INDEX)
    assert is_whole(bucket)
    assert bucket.methods() == ["HEAD", "HEAD", "GET"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 0x3D1FB0BC),
        (0, 0),
        (1, 223),
        (1, 225),
        (2, DATA_BYTES - 1),
        (2, DATA_BYTES + 1),
        (4, 2),
        (4, 0),
        (5, 171),
    ],
)
def test_an_index_that_contradicts_the_list_makes_no_whole_copy(bucket: ScriptedBucket, place: int, value: int) -> None:
    head = [value if at == place else written for at, written in enumerate(WRITTEN)]
    bucket.answer = copy_with(INDEX.pack(*head) + REST_OF_INDEX)
    assert not is_whole(bucket)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 223])
def test_an_index_that_ends_early_makes_no_whole_copy(bucket: ScriptedBucket, length: int) -> None:
    bucket.answer = copy_with((INDEX.pack(*WRITTEN) + REST_OF_INDEX)[:length])
    assert not is_whole(bucket)


def test_an_index_cut_between_the_two_looks_makes_no_whole_copy(bucket: ScriptedBucket) -> None:
    whole = INDEX.pack(*WRITTEN) + REST_OF_INDEX
    bucket.answer = copy_with(whole, Answer(206, {"Content-Range": "bytes 0-9/10", "ETag": '"x"'}, whole[:10]))
    assert not is_whole(bucket)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_an_index_that_cannot_be_read_is_temporary(bucket: ScriptedBucket, status: int) -> None:
    bucket.answer = copy_with(INDEX.pack(*WRITTEN) + REST_OF_INDEX, Answer(status))
    with pytest.raises(TemporaryError):
        is_whole(bucket)


def test_no_copy_is_whole_with_the_index_of_another(bucket: ScriptedBucket) -> None:
    bucket.answer = copy_with(INDEX.pack(*WRITTEN) + REST_OF_INDEX, owner="another")
    with pytest.raises(PermanentError, match="pulsarclustername is 'another'"):
        is_whole(bucket)


@pytest.mark.parametrize("answer", [Answer(404), Answer(403)])
def test_a_bucket_that_cannot_be_listed_lacks_no_copy(bucket: ScriptedBucket, answer: Answer) -> None:
    bucket.answer = lambda request: answer if request.method == "GET" else ABSENT
    with pytest.raises(TemporaryError):
        is_whole(bucket)


def test_every_error_of_the_client_is_translated() -> None:
    exported = [item for item in vars(obstore.exceptions).values() if isinstance(item, type)]
    errors = [item for item in exported if issubclass(item, Exception)]
    assert len(errors) >= 12
    assert [item for item in errors if not issubclass(item, CLIENT_ERRORS)] == []
