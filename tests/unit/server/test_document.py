"""The OpenAPI document of all features: ids that stay, and one shape for every error."""

from collections import Counter
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pulsar_sidecar.bootstrap.features import FEATURES
from pulsar_sidecar.server.app import create_app
from pulsar_sidecar.server.gate import OPEN_PATHS

REASON = {"$ref": "#/components/schemas/Reason"}


def app(*, token_required: bool = False) -> FastAPI:
    routers = [routes for entry in FEATURES for routes in entry.routes()]
    return create_app(routers, lambda: None, CollectorRegistry(), Event(), token_required=token_required)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return app().openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_operation_has_an_id_of_its_own_that_does_not_follow_its_path(document: dict[str, Any]) -> None:
    ids = Counter(operation["operationId"] for _, _, operation in operations(document))
    assert [name for name, count in ids.items() if count > 1] == []
    assert all(name.isalnum() and name[0].islower() and "admin" not in name.lower() for name in ids)
    assert {"deleteTopic", "ledgerDeletionStatus", "cancelDelayedMessage", "v1AckState", "readyz"} <= set(ids)


def test_every_operation_has_a_summary_of_its_own(document: dict[str, Any]) -> None:
    summaries = Counter(operation["summary"] for _, _, operation in operations(document))
    assert [summary for summary, count in summaries.items() if count > 1 or len(summary) > 110] == []


def test_every_schema_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    """FastAPI prefixes the module to two classes of one name, and client generators take either for the other."""
    assert [name for name in document["components"]["schemas"] if "__" in name] == []


def test_inherited_fields_are_described_as_in_their_own_class(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name, base in (("FollowedDeletion", "TopicDeletionStatus"), ("DeletionPlan", "LedgerCount")):
        inherited, own = schemas[name]["properties"], schemas[base]["properties"]
        texts = {field: each["description"] for field, each in own.items() if "description" in each}
        assert texts
        assert {field: inherited[field].get("description") for field in texts} == texts


def test_every_error_has_the_one_shape(document: dict[str, Any]) -> None:
    components = document["components"]
    assert set(components["schemas"]["Reason"]["properties"]) == {"reason"}
    for path, method, operation in operations(document):
        errors = {status: answer for status, answer in operation["responses"].items() if not status < "400"}
        assert {"500", "503", "default"} <= set(errors), (method, path)
        assert ("401" in errors) == (path not in OPEN_PATHS), (method, path)
        assert ("413" in errors) == ("requestBody" in operation), (method, path)
        for answer in errors.values():
            answered = components["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
            assert answered["content"]["application/json"]["schema"] == REASON, (method, path)
            assert answered["description"]


def test_a_credential_is_optional_where_none_is_demanded(document: dict[str, Any]) -> None:
    for shown, security in ((document, [{"token": []}, {}]), (app(token_required=True).openapi(), [{"token": []}])):
        for path, _, operation in operations(shown):
            assert operation.get("security") == (None if path in OPEN_PATHS else security)
