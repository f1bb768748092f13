"""A program that counts words of a topic's messages in SQLite: each message once, however often it is killed.

This is the example of ``docs/exactly-once-in-python.md``, with a hook at each step at which a test kills it.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from pulsar_sidecar.deduplication.publishing.reader import ExactlyOnceReader, ReadPosition

SCHEMA = """
create table if not exists totals (word text primary key, count integer not null);
create table if not exists positions (partition integer primary key, position text not null);
"""


def opened(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database)
    connection.executescript(SCHEMA)
    return connection


def positions(database: sqlite3.Connection) -> dict[int, ReadPosition]:
    """Where to go on."""
    rows = database.execute("select partition, position from positions")
    return {partition: ReadPosition.parse(text) for partition, text in rows}


def apply(
    reader: ExactlyOnceReader, database: sqlite3.Connection, step: Callable[[str], None], wait_seconds: float
) -> int:
    """Count the words of every message there is, in one transaction for each message; how many there were."""
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
