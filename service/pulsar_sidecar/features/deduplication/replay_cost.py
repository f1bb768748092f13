"""Time that a topic load replays entries for deduplication, by measurements on a real cluster.

A broker reads the entries after the snapshot a hundred at a time, one read after the other
(``ManagedLedgerReplayTask``), and no client can use the topic meanwhile.
"""

from typing import Final

from pulsar_sidecar.features.deduplication.results import Amount

SECONDS_PER_ENTRY: Final = 14.7 / 200_000
"""200,000 entries of 100 bytes took 14.3 to 20.0 s, 14.7 s after a restart: the median of three."""
SECONDS_PER_BYTE: Final = (2.2 - 20_000 * SECONDS_PER_ENTRY) / (20_000 * 10_000)
"""20,000 entries of 10,000 bytes took 1.7 to 2.3 s, the median of three is 2.2 s."""
ASSUMPTION: Final = (
    f"a broker of 4.0.8 replays {1 / SECONDS_PER_ENTRY:,.0f} entries per second and needs another second for each "
    f"{1 / SECONDS_PER_BYTE / 1e6:,.0f} MB: measured on a local cluster of one bookie and one broker on 2 busy cores, "
    "whose bookie had the entries in memory; bookies that read from disks are slower"
)


def replay_seconds(amount: Amount) -> float:
    """Return the time that a broker takes to replay this amount."""
    return amount.entries * SECONDS_PER_ENTRY + amount.size_bytes * SECONDS_PER_BYTE
