"""Brokers that keep delayed indexes in buckets (PIP-195).

A broker that recovers buckets waits for bookies while it holds the dispatcher's lock (Pulsar #26103). A consumer that
closes meanwhile blocks the event loop of its connection at that lock, and connections to bookies share these event
loops: if the response arrives on that one, all threads block until the read times out, four minutes later. Seen in a
thread dump of 4.0.8: `BucketDelayedDeliveryTracker.recoverBucketSnapshot` under the lock of
`PersistentDispatcherMultipleConsumers`, and ``pulsar-io`` in `ServerCnx.handleCloseConsumer` waiting for it. With the
few event loops of a small machine that happens one time in four; with these, hardly ever.
"""

BUCKETS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "numIOThreads": "128",
    "bookkeeperClientNumWorkerThreads": "16",
}
SMALL_BUCKETS = {
    **BUCKETS,
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "20",
    "managedLedgerMaxEntriesPerLedger": "100",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
"""Settings with buckets and ledgers so small that a few hundred messages fill several."""
