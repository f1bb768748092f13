"""Pages of pins, as a browser shows them."""

import re
from dataclasses import replace
from typing import Any

import pytest
from pulsar_sidecar.features.pins import results
from pulsar_sidecar.features.pins.pages import holders_of, target_of
from pulsar_sidecar.features.pins.results import PinCause
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.ownership.registrations import BookieState

from tests.fakes.pins import FIGURES
from tests.fakes.rest_api import FakeBrowser

BASE = "GET /admin/v2/pins"
TOPIC = "persistent://public/default/orders"
HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}"
MIB = 1024 * 1024
HTTP_FIGURES = replace(FIGURES, live_bytes=3 * MIB, disk_used_bytes=5 * MIB, disk_total_bytes=9 * MIB)
NO_FIGURES: dict[str, Any] = {"figures": None, "uncollected_at_most_bytes": None}


def pin(**more: Any) -> results.Pin:
    made = results.Pin(
        cause=PinCause.BACKLOG,
        holder="billing",
        detail="acknowledged up to 1:9; 20 entries waiting",
        ledgers=2,
        ledger_ids=(2, 3),
        bytes=2 * MIB,
        on_bookies_bytes=4 * MIB,
        frees_bytes=MIB,
        frees_on_bookies_bytes=2 * MIB,
        also_held_by=("retention",),
        ends_ms=None,
        remedies=(
            results.Remedy("start its consumers"),
            results.Remedy("skip", f"pulsar-admin topics clear-backlog -s billing {TOPIC}"),
        ),
    )
    return replace(made, **more)


def topic(**more: Any) -> results.TopicPins:
    made = results.TopicPins(
        topic=TOPIC,
        read_ms=0,
        loaded_by=None,
        shadow_of=None,
        ledgers=3,
        bytes=3 * MIB,
        on_bookies_bytes=6 * MIB,
        tiered_bytes=0,
        tiered_and_bookies_bytes=0,
        tiered_alone_ledgers=0,
        tiered_alone_bytes=0,
        pins=(pin(),),
        held=(results.LedgersHeldTogether(("backlog billing", "retention"), 1, MIB, 2 * MIB),),
    )
    return replace(made, **more)


def namespace(*largest: results.TopicPins) -> results.NamespacePins:
    return results.NamespacePins(
        "public/default", 0, 45, MIB, 0, 0, 1, ("persistent://public/default/broken",), largest
    )


def bookie(**more: Any) -> results.BookiePins:
    made = results.BookiePins(
        bookie="bookie-1:3181",
        state=BookieState.WRITABLE,
        read_ms=1_700_000_000_000,
        ledgers=5,
        open_ledgers=1,
        size_bytes=MIB,
        figures=HTTP_FIGURES,
        problem=None,
        uncollected_at_most_bytes=2 * MIB,
        uncollected_ledgers=1,
        unreadable_ledgers=0,
        unreadable_ledger_ids=(),
        remedies=(results.Remedy("have it collect now", "curl -X PUT http://bookie-1:8000/api/v1/bookie/gc"),),
        owners=1,
        shares=(results.Share(TOPIC, 4, MIB), results.Share(None, 1, 0)),
    )
    return replace(made, **more)


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
def test_target_is_derived_from_the_form_of_the_text(named: str, target: tuple[str, str] | None) -> None:
    if target is None:
        with pytest.raises(InvalidInputError):
            target_of(named)
    else:
        assert target_of(named) == (target[0], f"/admin/v2/pins{target[1]}")


def test_a_topic_with_each_pin_and_its_commands(browser: FakeBrowser) -> None:
    browser.api.answers[f"{BASE}/persistent/public/default/orders"] = [topic()]
    shown = browser.get("/ui/pins?of=orders")
    assert shown.status == 200
    assert "backlog billing acknowledged up to 1:9; 20 entries waiting also held by retention" in shown.words
    assert "2.0 MiB ( 4.0 MiB on bookies) 2 ledgers 1.0 MiB ( 2.0 MiB on bookies)" in shown.words
    assert "backlog billing and retention 1 1.0 MiB ( 2.0 MiB on bookies)" in shown.words
    assert "not loaded no broker trims it" in shown.words
    assert f"pulsar-admin topics clear-backlog -s billing {TOPIC}" in shown.words
    assert "Equivalent command: pulsar-sidecar pins topic orders" in shown.words
    assert '<a href="/ui/pins" aria-current="page">' in shown.text


def test_bytes_in_tiered_storage(browser: FakeBrowser) -> None:
    offloaded = topic(tiered_bytes=2 * MIB, tiered_alone_bytes=MIB)
    browser.api.answers[f"{BASE}/persistent/public/default/orders"] = [offloaded]
    browser.api.answers[f"{BASE}/namespaces/public/default"] = replace(
        namespace(offloaded), tiered_bytes=3 * MIB, tiered_alone_bytes=0
    )
    assert "2.0 MiB in tiered storage ( 1.0 MiB only there)" in browser.get("/ui/pins?of=orders").words
    assert "3.0 MiB in tiered storage ( 0 B only there)" in browser.get("/ui/pins?of=public/default").words


def test_holders_of_the_same_bytes_free_them_together_only(browser: FakeBrowser) -> None:
    names = ["delayed-messages mail", "delayed-messages push", "last-ledger"]
    none_alone = {"frees_bytes": 0, "frees_on_bookies_bytes": 0}
    pins = [
        pin(
            cause=PinCause(name.split()[0]),
            holder=name.partition(" ")[2],
            also_held_by=(*names[:1], *names[2:]),
            **none_alone,
        )
        for name in names
    ]
    held = (results.LedgersHeldTogether(tuple(names), 2, 209 * 1024, 418 * 1024),)
    browser.api.answers[f"{BASE}/persistent/public/default/orders"] = [topic(pins=tuple(pins), held=held)]
    shown = browser.get("/ui/pins?of=orders")
    assert shown.words.count("only together") == 3
    assert " and ".join(names) + " 2 209.0 KiB ( 418.0 KiB on bookies)" in shown.words
    assert "0 B" not in shown.words
    assert 'aria-label="last-ledger holds 209.0 KiB together with others"' in shown.text


def test_a_picture_has_the_same_scale_for_each_holder() -> None:
    held = (
        results.LedgersHeldTogether(("backlog billing", "retention"), 1, 3 * MIB, 0),
        results.LedgersHeldTogether(("backlog billing",), 1, MIB, 0),
        results.LedgersHeldTogether(("retention",), 1, 1, 0),
        results.LedgersHeldTogether(("cursor-ledger",), 1, 0, 0),
    )
    pins = (pin(), pin(cause=PinCause.RETENTION, holder=""), pin(cause=PinCause.CURSOR_LEDGER, holder=""))
    billing, retention, cursor = (holder.strip for holder in holders_of(topic(pins=pins, held=held)))
    assert (billing.path, billing.pale) == ("M749 100v-100h245v100z", "M0 100v-100h745v100z")
    assert (retention.path, retention.pale) == ("M998 100v-100h8v100z", billing.pale)
    assert (cursor.path, cursor.pale) == ("", "")
    assert billing.width == retention.width == cursor.width == 1010
    assert billing.text == "backlog billing holds 1.0 MiB alone, 3.0 MiB together with others"
    assert cursor.text == "cursor-ledger holds no known bytes"


def test_names_of_others_are_text(browser: FakeBrowser) -> None:
    found = topic(topic=HOSTILE, pins=(pin(holder=HOSTILE, detail=HOSTILE),), loaded_by=HOSTILE)
    browser.api.answers[f"{BASE}/persistent/public/default/orders"] = [found]
    shown = browser.get("/ui/pins?of=orders")
    assert "<script>alert" not in shown.text
    assert "{{ 7*7 }}" in shown.text
    refused = browser.get("/ui/pins?of=%3Cscript%3Ealert(1)%3C%2Fscript%3E%2Fx%2Fy%2Fz")
    assert "<script>alert" not in refused.text
    assert "Not asked" in refused.words


def test_a_name_cannot_hide_what_it_is(browser: FakeBrowser) -> None:
    """U+202E turns what follows, so that ``\u202eevil`` reads "live"."""
    found = topic(topic=f"{TOPIC}\u202e", pins=(pin(holder="\u202eevil"),))
    browser.api.answers[f"{BASE}/persistent/public/default/orders"] = [found]
    shown = browser.get("/ui/pins?of=orders")
    assert "backlog \\u202eevil" in shown.words
    assert "\u202e" not in shown.text
    assert "orders%E2%80%AE" in shown.text


def test_a_namespace_by_pages(browser: FakeBrowser) -> None:
    browser.api.answers[f"{BASE}/namespaces/public/default"] = namespace(topic())
    shown = browser.get("/ui/pins?of=public%2Fdefault&offset=20")
    assert browser.api.calls("GET")[0][0] == "/admin/v2/pins/namespaces/public/default?offset=20&limit=20"
    assert "21 to 40 of 44" in shown.words
    assert "1 lists unreadable persistent://public/default/broken" in shown.words
    assert 'href="/ui/pins?of=persistent%3A%2F%2Fpublic%2Fdefault%2Forders"' in shown.text


def test_system_topics_and_namespaces_are_under_a_heading(browser: FakeBrowser) -> None:
    own = "persistent://public/default/__change_events"
    browser.api.answers[f"{BASE}/namespaces/public/default"] = namespace(topic(topic=own), topic())
    shown = browser.get("/ui/pins?of=public/default")
    assert shown.words.index(f" {TOPIC}") < shown.words.index("System topics (1)") < shown.words.index(f" {own}")
    assert "clear-backlog" not in shown.words
    shares = tuple(results.Share(name, 1, 0) for name in ("pulsar/system", "public/default", None))
    browser.api.answers[f"{BASE}/bookies/bookie-1%3A3181"] = bookie(shares=shares)
    one = browser.get("/ui/pins?of=bookie-1:3181").words
    assert one.index("public/default 1") < one.index("System namespaces (1)") < one.index("pulsar/system 1")


def test_a_ledger_and_a_shadow_lead_to_topics(browser: FakeBrowser) -> None:
    browser.api.answers[f"{BASE}/ledgers/7"] = results.LedgerPins(7, 0, TOPIC, "data", 1, 2, ())
    assert "of=persistent%3A%2F%2Fpublic%2Fdefault%2Forders" in browser.get("/ui/pins?of=7").text
    browser.api.answers[f"{BASE}/persistent/public/default/orders"] = [topic(shadow_of="persistent://t/n/source")]
    assert "A shadow of persistent://t/n/source , whose ledgers it reads" in browser.get("/ui/pins?of=orders").words


def test_bookies_and_one_of_them(browser: FakeBrowser) -> None:
    without = bookie(bookie="bookie-2:3181", **NO_FIGURES, problem="it has no HTTP service")
    down = bookie(bookie="bookie-3:3181", state=BookieState.DOWN, **NO_FIGURES, problem="it is down")
    suspended = bookie(
        figures=replace(HTTP_FIGURES, minor=results.Compaction(0.5, 3600.0, is_suspended=True)),
        unreadable_ledgers=2,
        unreadable_ledger_ids=(7, 8),
        bookie="bookie-4:3181",
    )
    browser.api.answers[f"{BASE}/bookies"] = [bookie(), without, down, suspended]
    shown = browser.get("/ui/pins")
    assert "bookie-1:3181 5 1 1.0 MiB 3.0 MiB 5.0 MiB of 9.0 MiB at most 2.0 MiB" in shown.words
    assert "unknown it has no HTTP service" in shown.words
    assert "bookie-3:3181 5 1 1.0 MiB ✕ down it is down" in shown.words
    assert "compaction suspended at most 2.0 MiB ✕ metadata unreadable not counted: 7, 8" in shown.words
    assert "All ledgers were read 2023-11-14" in shown.words
    browser.api.answers[f"{BASE}/bookies/bookie-1%3A3181"] = bookie()
    one = browser.get("/ui/pins?of=bookie-1:3181&by=topic")
    assert any(target.endswith("?offset=0&limit=50&byTopic=true") for target, _ in browser.api.calls("GET"))
    assert "curl -X PUT http://bookie-1:8000/api/v1/bookie/gc" in one.words
    assert f"{TOPIC} 4 1.0 MiB of no topic 1 0 B" in one.words
    assert "pulsar-sidecar pins bookie bookie-1:3181 --by-topic" in one.words


def test_a_bookie_whose_id_looks_like_a_topic_is_still_a_bookie(browser: FakeBrowser) -> None:
    browser.api.answers[f"{BASE}/bookies"] = [bookie(bookie="rack-1")]
    browser.api.answers[f"{BASE}/bookies/rack-1"] = bookie(bookie="rack-1", owners=70)
    (address,) = re.findall(r'href="(/ui/pins[?]of=rack-1[^"]*)"', browser.get("/ui/pins").text)
    shown = browser.get(address.replace("&amp;", "&") + "&offset=50")
    assert "rack-1 5 1 1.0 MiB" in shown.words
    assert "51 to 70 of 70" in shown.words
    assert 'href="/ui/pins?of=rack-1&amp;kind=bookie&amp;by=topic"' in shown.text
    assert "pulsar-sidecar pins bookie rack-1 --offset=50" in shown.words


def test_refused_and_failed_reads_are_named(browser: FakeBrowser) -> None:
    browser.api.answers[f"{BASE}/ledgers/7"] = (404, {"reason": "ledger 7 has no metadata"})
    shown = browser.get("/ui/pins?of=7")
    assert shown.status == 200
    assert "Could not be read ledger 7 has no metadata" in shown.words
    browser.api.answers[f"{BASE}/bookies"] = (403, {"reason": "it takes a viewer's role"})
    assert "it takes a viewer's role" in browser.get("/ui/pins").text.replace("&#39;", "'")
