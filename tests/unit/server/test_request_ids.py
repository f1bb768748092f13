"""Every response names its request, by the caller's id or a new one, and so does each line that is logged of it."""

import re
from collections.abc import Iterator

import pytest
import structlog
from fastapi import Request
from pulsar_sidecar.observability.tracing import add_request, current_trace
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.rights import Right, takes
from structlog.typing import EventDict

from tests.cluster.patience import until
from tests.unit.server.serving import Served, served

NEW = re.compile("[0-9a-f]{32}")


class Noting:
    """A route that logs a line and remembers what its work would hand on."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        self.router = guarded_router("test")
        self.router.add_api_route("/note", self.note)
        self.router.add_api_route("/fail", self.fail)

    @takes(Right.OPEN)
    def note(self, _request: Request) -> None:
        structlog.get_logger("test").info("in the route")
        self.seen.append(current_trace().request_id)

    @takes(Right.OPEN)
    def fail(self, _request: Request) -> None:
        raise ZeroDivisionError


@pytest.fixture(scope="module")
def noting() -> Noting:
    return Noting()


@pytest.fixture(scope="module")
def noting_server(noting: Noting) -> Iterator[Served]:
    with served(routers=[noting.router]) as server:
        yield server


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    with structlog.testing.capture_logs([add_request]) as found:
        yield found


@pytest.mark.parametrize("given", ["r-1", "3f2a:b/c+d=e@f~g.h_i", "x" * 128])
def test_the_callers_id_comes_back_and_is_in_each_line(
    noting_server: Served, noting: Noting, lines: list[EventDict], given: str
) -> None:
    answer = noting_server.ask("GET", "/note", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given
    assert noting.seen[-1] == given
    until(lambda: len(lines) == 2, "the line that comes after the answer")
    assert [(line["event"], line["request_id"]) for line in lines] == [("in the route", given), ("request", given)]


@pytest.mark.parametrize("given", [None, "", "x" * 129, "two words", "a\tb", "ä", '"quoted"'])
def test_a_request_without_a_usable_id_gets_a_new_one(
    noting_server: Served, noting: Noting, lines: list[EventDict], given: str | None
) -> None:
    answer = noting_server.ask("GET", "/note", headers={} if given is None else {"X-Request-Id": given})
    own = answer.headers["x-request-id"]
    assert NEW.fullmatch(own)
    assert noting.seen[-1] == own
    until(lambda: len(lines) == 2, "the line that comes after the answer")
    assert {line["request_id"] for line in lines} == {own}


@pytest.mark.parametrize(
    ("path", "status"), [("/livez", 200), ("/nowhere", 404), ("/%ff/../é", 404), ("/fail", 500), ("/metrics", 200)]
)
def test_every_kind_of_answer_has_it(noting_server: Served, path: str, status: int) -> None:
    answer = noting_server.ask("GET", path.encode().decode("ascii", "ignore"), headers={"X-Request-Id": "r-2"})
    assert (answer.status, answer.headers["x-request-id"]) == (status, "r-2")


def test_two_requests_of_one_connection_have_two_ids(noting_server: Served) -> None:
    first, second = (noting_server.ask("GET", "/note").headers["x-request-id"] for _ in range(2))
    assert first != second


def test_an_unforeseen_error_names_the_request_whose_lines_have_the_details(noting_server: Served) -> None:
    reason = noting_server.ask("GET", "/fail", headers={"X-Request-Id": "r-3"}).reason
    assert reason == "unexpected ZeroDivisionError; the sidecar's log has the details, with the request_id r-3"
