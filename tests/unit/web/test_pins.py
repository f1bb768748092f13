"""What pins this, as a browser shows it."""

import re
from typing import Any

import pytest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.web.pages.pin_views import holders_of
from pulsar_sidecar.web.pages.pins import target_of

from tests.fakes.rest_door import FakeBrowser

BASE = "GET /admin/v2/pins"
TOPIC = "persistent://public/default/orders"
HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}"
MIB = 1024 * 1024
NO_FIGURES: dict[str, Any] = {"figures": None, "uncollectedAtMostBytes": None}
UNREADABLE = {"readMs": 0, "unreadableTopics": ["persistent://public/default/broken"]}


def pin(**more: object) -> dict[str, Any]:
    return {
        "cause": "backlog",
        "holder": "billing",
        "detail": "acknowledged up to 1:9; 20 entries waiting",
        "ledgers": 2,
        "ledgerIds": [2, 3],
        "bytes": 2 * MIB,
        "onBookiesBytes": 4 * MIB,
        "freesBytes": MIB,
        "freesOnBookiesBytes": 2 * MIB,
        "alsoHeldBy": ["retention"],
        "endsMs": None,
        "remedies": [
            {"what": "start its consumers", "command": None},
            {"what": "skip", "command": f"pulsar-admin topics clear-backlog -s billing {TOPIC}"},
        ],
        **more,
    }


def topic(**more: object) -> dict[str, Any]:
    return {
        "topic": TOPIC,
        "loadedBy": None,
        "shadowOf": None,
        "ledgers": 3,
        "bytes": 3 * MIB,
        "onBookiesBytes": 6 * MIB,
        "tieredBytes": 0,
        "readMs": 0,
        "held": [{"pins": ["backlog billing", "retention"], "ledgers": 1, "bytes": MIB, "onBookiesBytes": 2 * MIB}],
        "pins": [pin()],
        **more,
    }


def figures(*, is_suspended: bool = False) -> dict[str, Any]:
    compaction = {"isSuspended": is_suspended}
    disks = {"diskUsedBytes": 5 * MIB, "diskTotalBytes": 9 * MIB}
    return {"liveBytes": 3 * MIB, **disks, "minor": compaction, "major": compaction}


def bookie(**more: object) -> dict[str, Any]:
    return {
        "bookie": "bookie-1:3181",
        "state": "writable",
        "readMs": 1_700_000_000_000,
        "ledgers": 5,
        "openLedgers": 1,
        "sizeBytes": MIB,
        "figures": figures(),
        "problem": None,
        "uncollectedAtMostBytes": 2 * MIB,
        "unreadableLedgers": 0,
        "unreadableLedgerIds": [],
        "uncollectedLedgers": 1,
        "remedies": [{"what": "have it collect now", "command": "curl -X PUT http://bookie-1:8000/api/v1/bookie/gc"}],
        "owners": 1,
        "shares": [{"owner": TOPIC, "ledgers": 4, "sizeBytes": MIB}, {"owner": None, "ledgers": 1, "sizeBytes": 0}],
        **more,
    }


@pytest.mark.parametrize(
    ("named", "target"),
    [
        ("4711", ("ledger", "/ledgers/4711")),
        ("bookie-1:3181", ("bookie", "/bookies/bookie-1%3A3181")),
        ("public/default", ("namespace", "/namespaces/public/default")),
        (TOPIC, ("topic", "/persistent/public/default/orders")),
        ("orders", ("topic", "/persistent/public/default/orders")),
        ("a/b/c d/e", None),
        ("persistent://t/c/n/x y", ("topic", "/persistent/t/c/n/x%20y")),
        ("non-persistent://t/n/x", None),
        ("t/n?x", None),
    ],
)
def test_what_a_text_names_shows_in_its_form(named: str, target: tuple[str, str] | None) -> None:
    if target is None:
        with pytest.raises(InvalidInputError):
            target_of(named)
    else:
        assert target_of(named) == (target[0], f"/admin/v2/pins{target[1]}")


def test_a_topic_with_each_pin_and_its_commands(browser: FakeBrowser) -> None:
    browser.door.answers[f"{BASE}/persistent/public/default/orders"] = [topic()]
    shown = browser.get("/ui/pins?of=orders")
    assert shown.status == 200
    assert "backlog billing acknowledged up to 1:9; 20 entries waiting also held by retention" in shown.words
    assert "2.0 MiB ( 4.0 MiB on bookies) 2 ledgers 1.0 MiB ( 2.0 MiB on bookies)" in shown.words
    assert "backlog billing and retention 1 1.0 MiB ( 2.0 MiB on bookies)" in shown.words
    assert "not loaded no broker trims it" in shown.words
    assert f"pulsar-admin topics clear-backlog -s billing {TOPIC}" in shown.words
    assert "The same by command: pulsar-sidecar pins topic orders" in shown.words
    assert '<a href="/ui/pins" aria-current="page">' in shown.text


def test_holders_of_the_same_bytes_free_them_together_only(browser: FakeBrowser) -> None:
    names = ["delayed-messages mail", "delayed-messages push", "last-ledger"]
    none_alone = {"freesBytes": 0, "freesOnBookiesBytes": 0}
    pins = [
        pin(cause=name.split()[0], holder=name.partition(" ")[2], alsoHeldBy=names[:1] + names[2:], **none_alone)
        for name in names
    ]
    held = [{"pins": names, "ledgers": 2, "bytes": 209 * 1024, "onBookiesBytes": 418 * 1024}]
    browser.door.answers[f"{BASE}/persistent/public/default/orders"] = [topic(pins=pins, held=held)]
    shown = browser.get("/ui/pins?of=orders")
    assert shown.words.count("only together") == 3
    assert " and ".join(names) + " 2 209.0 KiB ( 418.0 KiB on bookies)" in shown.words
    assert "0 B" not in shown.words
    assert 'aria-label="last-ledger holds 209.0 KiB together with others"' in shown.text


def test_a_picture_has_the_same_scale_for_each_holder() -> None:
    held = [
        {"pins": ["backlog billing", "retention"], "ledgers": 1, "bytes": 3 * MIB, "onBookiesBytes": 0},
        {"pins": ["backlog billing"], "ledgers": 1, "bytes": MIB, "onBookiesBytes": 0},
        {"pins": ["retention"], "ledgers": 1, "bytes": 1, "onBookiesBytes": 0},
        {"pins": ["cursor-ledger"], "ledgers": 1, "bytes": 0, "onBookiesBytes": 0},
    ]
    pins = [pin(), pin(cause="retention", holder=""), pin(cause="cursor-ledger", holder="")]
    billing, retention, cursor = (holder.strip for holder in holders_of(topic(pins=pins, held=held)))
    assert (billing.path, billing.pale) == ("M749 100v-100h245v100z", "M0 100v-100h745v100z")
    assert (retention.path, retention.pale) == ("M998 100v-100h8v100z", billing.pale)
    assert (cursor.path, cursor.pale) == ("", "")
    assert billing.width == retention.width == cursor.width == 1010
    assert billing.text == "backlog billing holds 1.0 MiB alone, 3.0 MiB together with others"
    assert cursor.text == "cursor-ledger holds no known bytes"


def test_names_of_others_are_text(browser: FakeBrowser) -> None:
    found = topic(topic=HOSTILE, pins=[pin(holder=HOSTILE, detail=HOSTILE)], loadedBy=HOSTILE)
    browser.door.answers[f"{BASE}/persistent/public/default/orders"] = [found]
    shown = browser.get("/ui/pins?of=orders")
    assert "<script>alert" not in shown.text
    assert "{{ 7*7 }}" in shown.text
    refused = browser.get("/ui/pins?of=%3Cscript%3Ealert(1)%3C%2Fscript%3E%2Fx%2Fy%2Fz")
    assert "<script>alert" not in refused.text
    assert "Not asked" in refused.words


def test_a_name_cannot_hide_what_it_is(browser: FakeBrowser) -> None:
    """U+202E turns what follows, so that ``\u202eevil`` reads "live"."""
    found = topic(topic=f"{TOPIC}\u202e", pins=[pin(holder="\u202eevil")])
    browser.door.answers[f"{BASE}/persistent/public/default/orders"] = [found]
    shown = browser.get("/ui/pins?of=orders")
    assert "backlog \\u202eevil" in shown.words
    assert "\u202e" not in shown.text
    assert "orders%E2%80%AE" in shown.text


def test_a_namespace_by_pages(browser: FakeBrowser) -> None:
    answer = {
        "namespace": "public/default",
        "topics": 45,
        "listedBytes": MIB,
        "unreadable": 1,
        **UNREADABLE,
        "largest": [topic()],
    }
    browser.door.answers[f"{BASE}/namespaces/public/default"] = answer
    shown = browser.get("/ui/pins?of=public%2Fdefault&offset=20")
    assert browser.door.calls("GET")[0][0] == "/admin/v2/pins/namespaces/public/default?offset=20&limit=20"
    assert "21 to 40 of 44" in shown.words
    assert "1 lists unreadable persistent://public/default/broken" in shown.words
    assert 'href="/ui/pins?of=persistent%3A%2F%2Fpublic%2Fdefault%2Forders"' in shown.text


def test_what_brokers_keep_for_themselves_is_behind_a_heading(browser: FakeBrowser) -> None:
    own = "persistent://public/default/__change_events"
    answer = {"namespace": "public/default", "topics": 2, "listedBytes": 9, "unreadable": 0, "unreadableTopics": []}
    browser.door.answers[f"{BASE}/namespaces/public/default"] = answer | {"largest": [topic(topic=own), topic()]}
    shown = browser.get("/ui/pins?of=public/default")
    assert shown.words.index(f" {TOPIC}") < shown.words.index("System topics (1)") < shown.words.index(f" {own}")
    assert "clear-backlog" not in shown.words
    shares = [{"owner": name, "ledgers": 1, "sizeBytes": 0} for name in ("pulsar/system", "public/default", None)]
    browser.door.answers[f"{BASE}/bookies/bookie-1%3A3181"] = bookie(shares=shares)
    one = browser.get("/ui/pins?of=bookie-1:3181").words
    assert one.index("public/default 1") < one.index("System namespaces (1)") < one.index("pulsar/system 1")


def test_a_ledger_and_a_shadow_lead_to_topics(browser: FakeBrowser) -> None:
    answer = {"ledgerId": 7, "topic": TOPIC, "kind": "data", "bytes": 1, "onBookiesBytes": 2, "pins": [], "bookies": []}
    browser.door.answers[f"{BASE}/ledgers/7"] = answer
    assert "of=persistent%3A%2F%2Fpublic%2Fdefault%2Forders" in browser.get("/ui/pins?of=7").text
    browser.door.answers[f"{BASE}/persistent/public/default/orders"] = [topic(shadowOf="persistent://t/n/source")]
    assert "A shadow of persistent://t/n/source , whose ledgers it reads" in browser.get("/ui/pins?of=orders").words


def test_bookies_and_one_of_them(browser: FakeBrowser) -> None:
    without = bookie(bookie="bookie-2:3181", **NO_FIGURES, problem="it has no HTTP service")
    down = bookie(bookie="bookie-3:3181", state="down", **NO_FIGURES, problem="it is down")
    suspended = bookie(
        figures=figures(is_suspended=True), unreadableLedgers=2, unreadableLedgerIds=[7, 8], bookie="bookie-4:3181"
    )
    browser.door.answers[f"{BASE}/bookies"] = [bookie(), without, down, suspended]
    shown = browser.get("/ui/pins")
    assert "bookie-1:3181 5 1 1.0 MiB 3.0 MiB 5.0 MiB of 9.0 MiB at most 2.0 MiB" in shown.words
    assert "not known it has no HTTP service" in shown.words
    assert "bookie-3:3181 5 1 1.0 MiB ✕ down it is down" in shown.words
    assert "compaction suspended at most 2.0 MiB ✕ metadata unreadable not counted: 7, 8" in shown.words
    assert "All ledgers were read 2023-11-14" in shown.words
    browser.door.answers[f"{BASE}/bookies/bookie-1%3A3181"] = bookie()
    one = browser.get("/ui/pins?of=bookie-1:3181&by=topic")
    assert any(target.endswith("?offset=0&limit=50&byTopic=true") for target, _ in browser.door.calls("GET"))
    assert "curl -X PUT http://bookie-1:8000/api/v1/bookie/gc" in one.words
    assert f"{TOPIC} 4 1.0 MiB of no topic 1 0 B" in one.words
    assert "pulsar-sidecar pins bookie bookie-1:3181 --by-topic" in one.words


def test_a_bookie_whose_id_looks_like_a_topic_is_still_a_bookie(browser: FakeBrowser) -> None:
    browser.door.answers[f"{BASE}/bookies"] = [bookie(bookie="rack-1")]
    browser.door.answers[f"{BASE}/bookies/rack-1"] = bookie(bookie="rack-1", owners=70)
    (address,) = re.findall(r'href="(/ui/pins[?]of=rack-1[^"]*)"', browser.get("/ui/pins").text)
    shown = browser.get(address.replace("&amp;", "&") + "&offset=50")
    assert "rack-1 5 1 1.0 MiB" in shown.words
    assert "51 to 70 of 70" in shown.words
    assert 'href="/ui/pins?of=rack-1&amp;kind=bookie&amp;by=topic"' in shown.text
    assert "pulsar-sidecar pins bookie rack-1 --offset=50" in shown.words


def test_what_is_refused_or_cannot_be_read_is_named(browser: FakeBrowser) -> None:
    browser.door.answers[f"{BASE}/ledgers/7"] = (404, {"reason": "ledger 7 has no metadata"})
    shown = browser.get("/ui/pins?of=7")
    assert shown.status == 200
    assert "Could not be read ledger 7 has no metadata" in shown.words
    browser.door.answers[f"{BASE}/bookies"] = (403, {"reason": "it takes a viewer's role"})
    assert "it takes a viewer's role" in browser.get("/ui/pins").text.replace("&#39;", "'")
