"""Pages' requests to the REST API: their credential, their rate, and the use of responses."""

import asyncio

from fastapi import APIRouter, Request
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.in_process import Answer, answer_of
from pulsar_sidecar.web.pages import Page
from pulsar_sidecar.web.readings import Readings
from pulsar_sidecar.web.shell import act, form_of
from starlette.responses import JSONResponse, Response

from tests.fakes.clock import FakeClock
from tests.fakes.rest_api import FakeBrowser

STATUS = "GET /admin/v2/ledger-deletion/status"
LEAKS = "/admin/v2/ledger-deletion/watch/leaks?limit=5"
ELSEWHERE = f"http://one:8750{LEAKS}"

router = APIRouter()


@router.get("/ui/read")
async def read_page(request: Request) -> Response:
    reading = await ask.read(request, "/admin/v2/ledger-deletion/watch/leaks", {"limit": 5, "cause": None})
    return JSONResponse({"value": reading.value, "problem": reading.problem, "asOf": reading.as_of_ms})


@router.post("/ui/change")
async def change_page(request: Request) -> Response:
    await form_of(request)
    return await act(
        request,
        "POST",
        ask.path("/admin/v2/persistent", "t", "n", "a/b c"),
        {"x": 1},
        back="/ui/read",
        done="It is done.",
    )


PAGES = (Page("/ui/read", "Read", router),)


def ready(browser: FakeBrowser) -> FakeBrowser:
    browser.pages = PAGES
    browser.api.answers[f"GET {LEAKS}"] = {"total": 1}
    browser.get("/ui/read")  # has the form's secret now
    browser.api.asked.clear()
    browser.clock.advance_ms(10_000)
    return browser


def test_responses_are_cached_for_seconds_and_shared(browser: FakeBrowser) -> None:
    ready(browser)
    first = browser.get("/ui/read").text
    browser.clock.advance_ms(3_000)
    assert browser.get("/ui/read").text == first
    assert len(browser.api.asked) == 1
    browser.clock.advance_ms(3_000)
    assert browser.get("/ui/read").text != first
    assert len(browser.api.asked) == 2


def test_a_slow_reading_is_kept_for_as_long_as_it_took_and_parsed_once() -> None:
    clock, asked = FakeClock(), []

    async def slow() -> Answer:
        asked.append(clock.now_ms())
        clock.advance_ms(30_000)
        return Answer(200, [1, 2])

    async def read() -> None:
        readings = Readings(clock)
        first = await readings.read("a list", slow, 4)
        for advance_ms, times in ((29_000, 1), (1_000, 2)):
            clock.advance_ms(advance_ms)
            again = await readings.read("a list", slow, 4)
            assert len(asked) == times
            assert (again.parsed(list[int]) is first.parsed(list[int])) is (times == 1)

    asyncio.run(read())


def test_cached_response_is_not_shown_to_another_caller(browser: FakeBrowser) -> None:
    ready(browser).sign_in = True
    browser.get("/ui/read")
    browser.api.token = "right"
    browser.cookies["pulsar-sidecar-token-0"] = "other"
    shown = browser.get("/ui/read")
    assert (shown.status, shown.header("location")) == (303, "/ui/sign-in?next=%2Fui%2Fread")
    browser.cookies["pulsar-sidecar-token-0"] = "right"
    assert '"total":1' in browser.get("/ui/read").text
    assert browser.api.asked[-1].headers["authorization"] == "Bearer right"


def test_cached_response_is_not_shown_under_another_host(browser: FakeBrowser) -> None:
    ready(browser)
    browser.get("/ui/read")
    browser.api.answers[f"GET {LEAKS}"] = (403, {"reason": "the Host header is neither"})
    shown = browser.get("/ui/read", host="evil.example")
    assert '"value":null' in shown.text
    assert browser.api.asked[-1].headers["host"] == "evil.example"
    assert browser.api.asked[-1].address == "192.0.2.7"


def test_a_refusal_ends_what_was_kept_and_a_failure_does_not(browser: FakeBrowser) -> None:
    ready(browser)
    browser.get("/ui/read")
    for answer, value in (
        ((503, {"reason": "no broker answers"}), '"value":{"total":1},"problem":"no broker answers"'),
        ((403, {"reason": "role 'x' may not do this"}), '"value":null,"problem":"role'),
        ((503, {"reason": "no broker answers"}), '"value":null,"problem":"no broker answers"'),
    ):
        browser.clock.advance_ms(10_000)
        browser.api.answers[f"GET {LEAKS}"] = answer
        assert value in browser.get("/ui/read").text


def test_a_change_is_asked_for_once_and_what_was_kept_is_read_again(browser: FakeBrowser) -> None:
    path = "/admin/v2/persistent/t/n/a%2Fb%20c"
    ready(browser).api.answers[f"POST {path}"] = {"ok": True}
    browser.get("/ui/read")
    shown = browser.post("/ui/change")
    assert (shown.status, shown.header("location")) == (303, "/ui/read")
    assert browser.api.calls("POST") == [(path, {"x": 1})]
    browser.clock.advance_ms(1)
    browser.get("/ui/read")
    assert len(browser.api.calls("GET")) == 2


def test_the_reason_of_a_refused_change_is_shown_once(browser: FakeBrowser) -> None:
    ready(browser).api.answers["POST /admin/v2/persistent/t/n/a%2Fb%20c"] = (409, {"reason": "<b>in use</b>; wait"})
    assert browser.post("/ui/change").status == 303
    shown = browser.get("/ui/nothing")
    assert shown.status == 404
    assert "Nothing was done (409): &lt;b&gt;in use&lt;/b&gt;; wait" in shown.text
    assert "in use" not in browser.get("/ui/nothing").text


def test_a_change_without_an_answer_may_have_taken_effect(browser: FakeBrowser) -> None:
    ready(browser).api.answers["POST /admin/v2/persistent/t/n/a%2Fb%20c"] = (503, {"reason": "the outcome is unknown"})
    browser.post("/ui/change")
    shown = browser.get("/ui/nothing").words
    assert "Not confirmed Look before you repeat it (503): the outcome is unknown" in shown
    assert "Nothing was done" not in shown


def test_a_redirect_is_followed_to_a_registered_sidecar_with_the_token(browser: FakeBrowser) -> None:
    browser.cookies["pulsar-sidecar-token-0"] = "secret"
    ready(browser).api.answers[f"GET {LEAKS}"] = (307, ELSEWHERE)
    browser.others[ELSEWHERE] = Answer(200, {"total": 7})
    assert '"total":7' in browser.get("/ui/read").text
    assert browser.sent_elsewhere == [("GET", ELSEWHERE, "Bearer secret", None)]


def test_a_redirect_to_another_address_gets_nothing(browser: FakeBrowser) -> None:
    ready(browser).api.answers[f"GET {LEAKS}"] = (307, "http://evil.example:8750/admin")
    assert "redirected to evil.example:8750, which is not a registered sidecar" in browser.get("/ui/read").text
    assert browser.sent_elsewhere == []


def test_a_sidecar_that_does_not_answer_is_a_problem_of_the_page(browser: FakeBrowser) -> None:
    ready(browser).api.answers[f"GET {LEAKS}"] = (307, ELSEWHERE)
    assert "does not respond" in browser.get("/ui/read").text


def test_a_defect_of_a_page_names_the_request(browser: FakeBrowser) -> None:
    ready(browser).api.answers[f"GET {LEAKS}"] = RuntimeError("secret")
    try:
        browser.get("/ui/read")
    except RuntimeError:
        return
    raise AssertionError("the server logs what it is")


def test_json_lines_are_a_list() -> None:
    for body, value in (
        (b'{"a":1}\n', [{"a": 1}]),
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b"", []),
        (b"{\n", None),
    ):
        assert answer_of(200, body, media_type="application/x-ndjson; charset=utf-8").value == value
    assert answer_of(200, b'{"a":1}', media_type="application/json").value == {"a": 1}
