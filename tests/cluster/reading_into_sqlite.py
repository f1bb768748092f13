"""A program that counts words of a topic's messages in SQLite, each message once, however often it is killed.

This is the example of ``docs/exactly-once-in-python.md``, with a hook at each step where a test kills it:

python -m tests.cluster.reading_into_sqlite BROKER_SERVICE_URL TOPIC DATABASE STEPS_UNTIL_SIGKILL
"""

import itertools
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pulsar_sidecar.bootstrap.exactly_once import open_reader
from pulsar_sidecar.features.publishing.reader import ExactlyOnceReader, ReadPosition

from tests.cluster.nursery import nursery

_IDLE_SECONDS = 5
SCHEMA = """
create table if not exists totals (word text primary key, count integer not null);
create table if not exists positions (partition integer primary key, position text not null);
"""


def opened(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database)
    connection.executescript(SCHEMA)
    return connection


def positions(database: sqlite3.Connection) -> dict[int, ReadPosition]:
    """Return the stored positions."""
    rows = database.execute("select partition, position from positions")
    return {partition: ReadPosition.parse(text) for partition, text in rows}


def apply(
    reader: ExactlyOnceReader, database: sqlite3.Connection, step: Callable[[str], None], wait_seconds: float
) -> int:
    """Count the words of all messages, in one transaction each, and return the number of messages."""
    done = 0
    while True:
        step("before reading")
        message = reader.read(wait_seconds)
        if message is None:
            return done
        step("after reading")
        with database:
            for word in message.payload.decode().split():
                database.execute(
                    "insert into totals values (?, 1) on conflict do update set count = count + 1", (word,)
                )
            step("between data and position")
            database.execute(
                "insert into positions values (?, ?) on conflict do update set position = excluded.position",
                (message.partition, str(message.position)),
            )
            step("before the commit")
        step("after the commit")
        done += 1


def killed_after(steps: int, broker_service_url: str, topic: str, database: Path) -> bool:
    """Run the program in its own process, killed after ``steps``; return False if it reached the topic's end."""
    ended = nursery().run("tests.cluster.reading_into_sqlite", broker_service_url, topic, str(database), str(steps))
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


def _run(broker_service_url: str, topic: str, path: str, steps: str) -> None:
    left = itertools.count(int(steps), -1)

    def step(name: str) -> None:
        if not next(left):
            os.kill(os.getpid(), signal.SIGKILL)

    with (
        closing(opened(Path(path))) as database,
        open_reader(broker_service_url, topic, positions(database)) as reader,
    ):
        apply(reader, database, step, _IDLE_SECONDS)


if __name__ == "__main__":
    _run(*sys.argv[1:])
