"""The command line as an operator types it, against a running sidecar of a real cluster."""

import json
from pathlib import Path
from typing import Any

from pulsar_sidecar.model.ledgers import LedgerComponent

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import CommandAnswer, SidecarProcess, run_command
from tests.cluster.topics import TopicLedgers, connected_consumer

DEAD_LETTERS = "persistent://pulsar/system/__ledger_deletion-DLQ"
DONE, REFUSED, FINDINGS, UNREACHABLE, NOT_COUNTED = 0, 1, 2, 3, 4


def done(answer: CommandAnswer) -> CommandAnswer:
    assert answer.exit_code == DONE, answer.stderr
    assert "Traceback" not in answer.stderr
    return answer


def failed(answer: CommandAnswer, code: int, reason: str) -> None:
    assert (answer.exit_code, answer.stdout) == (code, ""), answer
    assert reason in answer.stderr
    assert "Traceback" not in answer.stderr


def status_of(sidecar: SidecarProcess) -> dict[str, Any]:
    return done(sidecar.command("ledger-deletion", "status", "--output", "json")).json


def test_appended_ledgers_are_deleted(scene: Scene, tmp_path: Path) -> None:
    sidecar = scene.sidecar
    left = scene.orphans(scene.topic("append me %"), 3)
    first, *others = left.records()
    topic = str(left.topic)
    answer = done(
        sidecar.command("ledger-deletion", "append", str(first["ledgerId"]), "--topic", topic, "--output", "json")
    )
    assert answer.json == {"sent": [first["ledgerId"]], "notSent": []}
    lines = tmp_path / "records.jsonl"
    lines.write_text("\n".join(json.dumps(each) for each in others) + "\n\n")
    answer = done(sidecar.command("ledger-deletion", "append", "--file", str(lines)))
    assert all(str(each["ledgerId"]) in answer.stdout for each in others)
    scene.oracles.add_accepted(left.data)
    scene.oracles.wait_for_finals(left.data)
    assert not scene.workload.existing(left.data)
    done(sidecar.command("broker-stats", "estimated-inflight-deletion-ledger-count"))
    until(
        lambda: sidecar.command("broker-stats", "estimated-inflight-deletion-ledger-count").stdout == "0\n",
        "the count is 0 again",
    )
    count = done(sidecar.command("broker-stats", "estimated-inflight-deletion-ledger-count", "--output", "json"))
    assert (count.json["count"], count.json["oldestAgeMs"]) == (0, None)


def test_drained_lists_work_left_by_an_uninstall(scene: Scene) -> None:
    sidecar, in_flight = scene.sidecar, "records in flight, retries included"
    left = scene.orphans(scene.topic("unfinished"), 2)

    def undone() -> dict[str, int]:
        """Return counts by kind once all of them are known, after the first query of brokers."""
        answer = until(lambda: counted(sidecar.command("drained", "--output", "json")), "everything is counted")
        assert answer.exit_code == (FINDINGS if answer.json else DONE), answer
        return {row["what"]: row["count"] for row in answer.json}

    def counted(answer: CommandAnswer) -> CommandAnswer | None:
        return None if answer.exit_code == NOT_COUNTED else answer

    done(sidecar.command("ledger-deletion", "pause"))
    try:
        scene.append(sidecar, left.records())
        # Brokers count entries, and records that are appended together may be one.
        until(lambda: in_flight in undone(), "the paused records are counted")
        assert "ledger-deletion resume" in sidecar.command("drained").stdout
    finally:
        done(sidecar.command("ledger-deletion", "resume"))
    scene.oracles.wait_for_finals(left.data)
    until(lambda: in_flight not in undone(), "no record is left")


def test_deleting_topics(scene: Scene) -> None:
    sidecar, workload = scene.sidecar, scene.workload
    plain, busy, parts = scene.topic("plain topic"), scene.topic("busy"), scene.topic("parts")
    before = workload.fill_with_everything(plain)
    answer = done(sidecar.command("topics", "delete", str(plain)))
    assert str(plain) in answer.stderr
    workload.admin("PUT", workload.of_topic(parts, "partitions"), 2)
    written = [workload.ledgers(parts.partition(n)) for n in range(2) if workload.fill(parts.partition(n), 2)]
    done(sidecar.command("topics", "delete", str(parts), "--partitioned"))
    gone = before.all.union(*(each.all for each in written))
    scene.oracles.add_accepted(gone)
    scene.oracles.wait_for_finals(gone)
    assert not workload.existing(gone)
    failed(sidecar.command("topics", "delete", str(plain)), REFUSED, "404")
    failed(sidecar.command("topics", "delete", "non-persistent://public/default/x"), REFUSED, "persistent://")
    workload.fill(busy)
    with connected_consumer(workload, busy, "sub"):
        failed(sidecar.command("topics", "delete", str(busy)), REFUSED, "412")
        used = workload.ledgers(busy)
        done(sidecar.command("topics", "delete", str(busy), "--force"))
    assert done(sidecar.command("ledger-deletion", "topic-deletions", "--output", "json")).json == []
    failed(sidecar.command("ledger-deletion", "abandon", "never-was"), REFUSED, "404")
    scene.oracles.add_accepted(used.data)
    scene.oracles.wait_until_drained(sidecar)
    assert not workload.existing(used.data)


def test_deleting_several_topics(scene: Scene) -> None:
    sidecar, workload = scene.sidecar, scene.workload
    topics, busy = [scene.topic(f"several-{number}") for number in range(5)], scene.topic("several-busy")
    for topic in (*topics, busy):
        workload.fill(topic, 2)
    gone = frozenset().union(*(workload.ledgers(topic).all for topic in topics))
    with connected_consumer(workload, busy, "sub"):
        used = workload.ledgers(busy)
        names = [str(topic) for topic in (*topics, busy, scene.topic("never-was"))]
        ended = sidecar.command("topics", "delete", *names, "--output", "json")
        assert ended.exit_code == 4, ended
        refused, unknown = ended.json
        assert (refused["topic"], "412" in refused["reason"]) == (str(busy), True)
        assert (unknown["topic"], "404" in unknown["reason"]) == (str(scene.topic("never-was")), True)
        assert ended.stderr.splitlines()[-1] == "deleted 5 of 7 topics"
    scene.oracles.add_accepted(gone)
    scene.oracles.wait_for_finals(gone)
    assert not workload.existing(gone)
    assert workload.existing(used.data) == used.data


def of_component(left: TopicLedgers, component: LedgerComponent) -> int:
    (ledger_id, *_) = left.of(component)
    return ledger_id


def test_deleting_single_ledgers_and_bringing_one_back(scene: Scene) -> None:
    # Longer than the commands take on a busy machine.
    sidecar = scene.start_alone(two_phase_deletion_undelete_protection_in_seconds=600)
    workload = scene.workload
    topic, used = scene.topic("single"), scene.topic("used")
    left = workload.fill_with_everything(topic)
    workload.leave_ledgers_behind(topic, left)
    delete = ("topics", "delete-ledger", str(topic), "--ledger-id")
    data, cursor = (min(left.data), left.cursors["plain"])
    done(sidecar.command(*delete, str(data)))
    cursors = ("--component", "MANAGED_CURSOR", "--cursor-name", "plain", "--authoritative")
    until(lambda: sidecar.command(*delete, str(cursor), *cursors).exit_code == DONE, "the open one is old enough to go")
    schema = of_component(left, LedgerComponent.SCHEMA_STORAGE)
    failed(sidecar.command(*delete, str(schema)), REFUSED, "412")
    done(sidecar.command(*delete, str(schema), "--component", "SCHEMA_STORAGE", "--schema-id", topic.schema_id))
    assert not workload.existing([data, cursor, schema])

    back = done(sidecar.command("ledger-deletion", "undelete", str(data), "--output", "json")).json
    assert (back["ledgerId"], back["readable"]) == (data, True)
    assert {"ledgerId": data, "untilMs": back["protectedUntilMs"]} in sidecar.status()["protectedLedgers"]
    assert workload.existing([data]) == {data}
    done(sidecar.command("ledger-deletion", "end-protection", str(data)))
    failed(sidecar.command("ledger-deletion", "end-protection", str(data)), REFUSED, "404")
    failed(sidecar.command("ledger-deletion", "undelete", str(data)), REFUSED, "409")
    failed(sidecar.command("ledger-deletion", "undelete", str(2**40), "--force"), REFUSED, "404")
    scene.append(sidecar, left.records())

    workload.fill(used)
    in_use = min(workload.ledgers(used).data)
    failed(sidecar.command("topics", "delete-ledger", str(used), "-l", str(in_use)), REFUSED, "in use")
    assert workload.existing([in_use])


def test_dead_letters_are_listed_page_by_page(scene: Scene) -> None:
    ledger_ids = [2**50 + number for number in range(5)]
    about = {"topicName": str(scene.topic("never")), "ledgerType": "LEDGER", "ledgerComponent": "MANAGED_LEDGER"}
    producer = scene.workload.client.create_producer(DEAD_LETTERS, batching_enabled=False)
    for ledger_id in ledger_ids:
        producer.send(json.dumps({"ledgerId": ledger_id, **about}).encode())
    producer.close()
    found: list[dict[str, Any]] = []
    page = ("ledger-deletion", "dlq", "list", "--limit", "2", "--output-format", "json")
    answer = done(scene.sidecar.command(*page))
    while answer.json:
        found += answer.json
        assert ("--after" in answer.stderr) == (len(answer.json) == 2)
        answer = done(scene.sidecar.command(*page, "--after", found[-1]["messageId"]))
    listed = [letter["record"]["ledgerId"] for letter in found if letter["record"]]
    assert [ledger_id for ledger_id in listed if ledger_id in ledger_ids] == ledger_ids
    assert all(letter["deadSince"].endswith("Z") for letter in found)
    table = done(scene.sidecar.command("ledger-deletion", "dlq", "list", "--limit", "10000")).stdout
    assert table.splitlines()[0].startswith("ledger id")
    redriven = scene.sidecar.command("ledger-deletion", "dlq", "redrive", *map(str, ledger_ids), "--output", "json")
    assert done(redriven).json["redriven"] == len(ledger_ids)


def test_serving_needs_settings_that_fit(scene: Scene) -> None:
    failed(run_command("serve"), REFUSED, "metadataStoreUrl")
    store = scene.cluster.addresses.metadata_store_url
    failed(
        run_command("serve", "--metadata-store-url", store, "--listen", "0.0.0.0:8750"),
        REFUSED,
        "authenticationEnabled",
    )
    failed(run_command("serve", "--metadata-store-url", "localhost:2181"), REFUSED, "zk:")
    taken = scene.sidecar.url.removeprefix("http://")
    failed(run_command("serve", "--metadata-store-url", store, "--listen", taken), REFUSED, "listen")
