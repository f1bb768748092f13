"""Every cause that keeps bytes on bookies, made for real: each remedy is carried out as it is printed, and frees them.

What a topic keeps is known from its broker, and what is free from the bookies: their files, and which of them still
answer with an entry. The cluster is of its own, because bookies collect only on request.
"""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.admin_clients.java_admin import java_admin
from tests.cluster.choosing import version_under_test
from tests.cluster.delays import now_ms
from tests.cluster.patience import until
from tests.cluster.pinning import (
    BOOKIE_CONF,
    BROKER_CONF,
    CLOSED,
    COPIES,
    ENTRIES_PER_LEDGER,
    ENTRY_BYTES,
    LOOKS,
    MIB,
    SCENES,
    Pinned,
    Pins,
    backlog,
    deduplication,
    holes,
)
from tests.cluster.plugin import ClusterFactory
from tests.cluster.sidecars import Sidecars
from tests.cluster.topics import Workload, unique


@pytest.fixture(scope="module")
def pins(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pins]:
    directory = tmp_path_factory.mktemp("pins")
    with ExitStack() as stack:
        cluster = stack.enter_context(
            special_cluster(bookies=COPIES, offloaders=True, broker_conf=BROKER_CONF, bookie_conf=BOOKIE_CONF)
        )
        workload = stack.enter_context(closing(Workload(cluster)))
        sidecars = stack.enter_context(closing(Sidecars(cluster.addresses, directory)))
        java = stack.enter_context(java_admin(version_under_test(), directory))
        sidecar = sidecars.start(delayed_message_cancelling_enabled="true")
        yield Pins(cluster, workload, sidecar, java, directory)


@pytest.mark.usefixtures("full_run")
def test_each_remedy_carried_out_as_it_is_printed_frees_what_was_promised(pins: Pins) -> None:
    made = [cause(pins, f"scene-{number}") for number, (cause, _) in enumerate(SCENES)]
    found = [pins.pin(pinned) for pinned in made]
    for pinned, pin in zip(made, found, strict=True):
        check(pins, pinned, pin)
    pins.collect()
    before = pins.entry_logs()

    freed_bytes: dict[LedgerId, int] = {}
    for (_, command), pinned, pin in zip(SCENES, made, found, strict=True):
        freed_bytes |= carried_out(pins, command, pinned, pin)
    assert sum(freed_bytes.values()) == sum(pin["freesOnBookiesBytes"] for pin in found)
    assert pins.entry_logs() >= before, "what is deleted is not collected yet"

    def all_collected() -> bool:
        pins.collect()
        path = "/admin/v2/pins/ledgers"
        return all(pins.sidecar.request("GET", f"{path}/{one}").status_code == 404 for one in freed_bytes)

    until(all_collected, "no bookie has an entry of what was freed")
    promised = sum(freed_bytes.values())
    until(lambda: before - pins.entry_logs() > 0.9 * promised, "the bookies' entry logs are that much smaller")


def check(pins: Pins, pinned: Pinned, pin: Mapping[str, Any]) -> None:
    """Check a pin against brokers and bookies."""
    lengths = {ledger_id: pins.workload.metadata(ledger_id).length_bytes for ledger_id in freed(pin)}
    assert pin["freesBytes"] == (sum(lengths.values()) or pin["freesBytes"]) > 0, pin  # one that is open has no length
    assert pin["freesOnBookiesBytes"] == COPIES * pin["freesBytes"]
    if pinned.ends_ms is None:
        assert pin["endsMs"] is None
    else:
        assert pinned.ends_ms[0] <= pin["endsMs"] <= pinned.ends_ms[1]
    if pinned.ledger_id is None:
        topic = pins.pins(pinned.topic)
        assert (topic["loadedBy"] is not None) == pinned.loaded, "it was not loaded for the question"
        assert topic["readMs"] <= now_ms()


def carried_out(pins: Pins, start: str, pinned: Pinned, pin: Mapping[str, Any]) -> dict[LedgerId, int]:
    """Carry out the remedy, and return the bytes that bookies still have of each freed ledger."""
    commands = [remedy["command"] for remedy in pin["remedies"] if remedy["command"]]
    (command,) = [each for each in commands if each.startswith(f"{start} ")]
    known = tuple(f"{start} " for _, start in SCENES)
    assert all(each.startswith(known) or LOOKS.fullmatch(each) for each in commands), "each is tried"
    if pinned.cause == "unreferenced":
        until(lambda: pins.sidecar.command(*shlex.split(command)[1:]).exit_code == 0, "the ledger is old enough")
    else:
        pins.run(command, *(["--yes"] if "cancel" in command else []))
    ids = freed(pin)
    until(partial(gone, pins, ids), f"{pinned.cause}: {ids} are deleted by {command}")
    left = {ledger_id: pins.of_ledger(ledger_id) for ledger_id in ids}
    for each in left.values():
        assert [pin["cause"] for pin in each["pins"]] == ["not-collected"], each
        assert len(each["bookies"]) == COPIES
        assert "forceMajor" in each["pins"][0]["remedies"][-1]["command"]
    return {ledger_id: each["onBookiesBytes"] for ledger_id, each in left.items()}


def test_read_only_commands_answer(pins: Pins) -> None:
    for cause in (holes, deduplication):
        pinned = cause(pins, f"looked-at-{unique()}")
        commands = [remedy["command"] for remedy in pins.pin(pinned)["remedies"] if remedy["command"]]
        (look,) = filter(LOOKS.fullmatch, commands)
        pins.run(look)


def test_a_ledger_whose_metadata_is_broken_is_named_and_the_rest_is_answered(pins: Pins) -> None:
    broken, whole = (backlog(pins, f"{name}-{unique()}").topic for name in ("broken", "whole"))
    ledger_id = LedgerId(pins.pins(broken)["pins"][0]["ledgerIds"][0])
    path, store = ledger_path(ledger_id), pins.workload.store
    node = store.read(path)
    assert node is not None
    store.delete(path)
    store.create(path, b"broken")
    try:
        (unreadable,) = [pin for pin in pins.pins(broken)["pins"] if pin["cause"] == "unreadable-metadata"]
        assert unreadable["ledgerIds"] == [ledger_id]
        pins.run(unreadable["remedies"][0]["command"])
        largest = pins.sidecar.call("GET", f"/admin/v2/pins/namespaces/{pins.namespace}", limit="100")["largest"]
        assert {str(broken), str(whole)} <= {each["topic"] for each in largest}
        until(lambda: pins.bookies()[0]["unreadableLedgerIds"] == [ledger_id], "bookies' answer names it, too")
    finally:
        store.delete(path)
        store.create(path, node.data)


@pytest.mark.usefixtures("full_run")
def test_dead_bytes_in_entry_logs_are_bounded_and_a_suspended_compaction_is_resumed(pins: Pins) -> None:
    """A collection without compaction leaves logs of dead bytes, which the bookies' own metrics do not count."""
    topic = backlog(pins, f"dead-{unique()}").topic
    pins.run(f"pulsar-sidecar topics delete {topic} --force")
    pins.collect(compact=False)
    suspended = json.dumps({"suspendMajor": True, "suspendMinor": True})
    for url in pins.cluster.addresses.bookie_http_urls:
        pins.run(f"curl -X PUT -d {shlex.quote(suspended)} {url}/api/v1/bookie/gc/suspend_compaction")
    bookies = pins.bookies()
    live, at_most = (sum(values) for values in zip(*map(live_and_at_most, bookies), strict=True))
    assert MIB < pins.entry_logs() - live <= at_most
    for bookie in bookies:
        assert bookie["figures"]["major"]["isSuspended"]
        resume = bookie["remedies"][0]
        assert "suspended" in resume["what"]
        pins.run(resume["command"])
    assert not any(bookie["figures"]["minor"]["isSuspended"] for bookie in pins.bookies())
    assert all(bookie["remedies"][0]["what"].startswith("wait") for bookie in pins.bookies())


def test_what_bookies_have_reclaimed_of_deleted_topics(pins: Pins) -> None:
    topics = [backlog(pins, f"reclaimed-{unique()}").topic for _ in range(3)]  # more than one entry log
    ids = {ledger_id for topic in topics for ledger_id in pins.workload.ledgers(topic).data}

    def reclaimed() -> dict[str, Any]:
        return dict(pins.sidecar.call("GET", "/admin/v2/ledger-deletion/reclaimed", hours="1"))

    def status() -> Any:
        return pins.sidecar.call("GET", "/admin/v2/ledger-deletion/status")["reclaimed"]

    until(lambda: status() is not None, "the sidecar takes the status's own reading")
    earlier = reclaimed()["ledgers"]
    for topic in topics:
        pins.run(f"pulsar-sidecar topics delete {topic} --force")
    until(lambda: reclaimed()["ledgers"] >= earlier + len(ids), "the records are processed")
    before = reclaimed()
    assert before["collectedBookies"] == 0
    size = len(topics) * CLOSED * ENTRIES_PER_LEDGER * ENTRY_BYTES
    assert all(bookie["waitingBytes"] > size for bookie in before["bookies"])

    def has_shrunk() -> bool:
        pins.collect()
        found = reclaimed()
        pairs = zip(before["bookies"], found["bookies"], strict=True)
        shrunk = all(earlier["reclaimedBytes"] < now["reclaimedBytes"] for earlier, now in pairs)
        return shrunk and bool(found["collectedBookies"] == COPIES)

    until(has_shrunk, "all bookies have collected, and their files are smaller")


def live_and_at_most(bookie: Mapping[str, Any]) -> tuple[int, int]:
    return bookie["figures"]["liveBytes"], bookie["uncollectedAtMostBytes"]


def test_bookies_that_are_down_are_listed_with_their_ledgers(pins: Pins) -> None:
    sizes = {bookie["bookie"]: bookie["sizeBytes"] for bookie in pins.bookies()}
    for down, name, code in ((1, "bookie-2", 0), (2, "bookie-1", 3)):
        pins.cluster.kill(name)
        until(partial(are_down, pins, down), f"{name} is seen to be down")
        ran = pins.sidecar.command("pins", "bookies")
        assert (ran.exit_code, ran.stdout.count("(DOWN)")) == (code, down), ran
    # What was written to when the bookies went away is closed by now, and counts.
    assert all(sizes.pop(bookie["bookie"]) <= bookie["sizeBytes"] for bookie in pins.bookies())
    assert not sizes
    for name in ("bookie-1", "bookie-2"):
        pins.cluster.restart(name)


def are_down(pins: Pins, count: int) -> bool:
    return [bookie["state"] for bookie in pins.bookies()].count("down") == count


def freed(pin: Mapping[str, Any]) -> set[LedgerId]:
    """Return the pin's ledgers except the topic's current one."""
    ids = [LedgerId(ledger_id) for ledger_id in pin["ledgerIds"]]
    return {*ids} if "last-ledger" not in pin["alsoHeldBy"] else {*ids[:-1]}


def gone(pins: Pins, ids: Collection[LedgerId]) -> bool:
    return not pins.workload.existing(ids)
