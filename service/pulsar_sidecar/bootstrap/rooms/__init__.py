"""The rooms of the service, one entry each; nothing else in the process knows them one by one.

To add a room: its folder, a module here that opens it and has its entry, its routes in ``api/rooms``, its commands in
``cli/groups``, and one line in `ROOMS`.
"""

from pulsar_sidecar.bootstrap.rooms import (
    ack_state,
    audit,
    deduplication,
    delayed_delivery,
    delayed_index,
    ledger_deletion,
    pins,
)

ROOMS = (
    ledger_deletion.ENTRY,
    delayed_delivery.ENTRY,
    ack_state.ENTRY,
    delayed_index.ENTRY,
    deduplication.ENTRY,
    audit.ENTRY,
    pins.ENTRY,
)
