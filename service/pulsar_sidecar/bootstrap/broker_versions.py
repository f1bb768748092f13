"""The brokers' versions of Pulsar, for the log, which warns of versions that were never tested.

Invariant: this changes nothing but the log. The watch that polls the brokers reads the version, so that it neither
stops nor delays a start; each version is logged once, also after an upgrade of brokers.
"""

import structlog

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import broker_version
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.pulsar_versions import TESTED_VERSIONS, tested_of_line

log = structlog.get_logger("pulsar-sidecar")


class BrokerVersions:
    """Log of the brokers' versions; reads one broker after the other if the address leads to several."""

    def __init__(self, rest: AdminRest) -> None:
        self._rest = rest
        self._logged = set[str]()

    def ask(self) -> None:
        """Log the version of the broker that responds, if it is new; raise a `SidecarError` if none responds."""
        try:
            version = broker_version(self._rest)
        except SidecarError as error:
            self._log_unread(str(error))
            raise
        if version is None:
            self._log_unread("the answer is not a version")
        else:
            self._log(version)

    def _log(self, version: str) -> None:
        if version in self._logged:
            return
        self._logged.add(version)
        of_line = tested_of_line(version)
        if version in TESTED_VERSIONS:
            log.info("Pulsar version tested", pulsar=version)
        elif of_line:
            log.info("Pulsar patch version not tested", pulsar=version, tested=of_line)
        else:
            log.warning("Pulsar version not tested", pulsar=version, tested=TESTED_VERSIONS)

    def _log_unread(self, why: str) -> None:
        if not self._logged:
            self._logged.add("")
            log.warning("reading the brokers' Pulsar version failed", error=why, tested=TESTED_VERSIONS)
