"""Which versions of Pulsar the brokers run, for the log: a version that was never tried is named as such.

Invariant: this changes nothing but the log. The version is asked for by the watch that asks the brokers whether they
are there, so it neither stops nor delays a start, and each version is logged once, also when brokers are upgraded
later.
"""

import structlog

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import broker_version
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.pulsar_versions import TRIED_VERSIONS, tried_of_line

log = structlog.get_logger("pulsar-sidecar")


class BrokerVersions:
    """Asks one broker after the other, as far as the address leads to several."""

    def __init__(self, rest: AdminRest) -> None:
        self._rest = rest
        self._logged = set[str]()

    def ask(self) -> None:
        """Log the version of the broker that answers, if it is new; a `SidecarError` if none answers."""
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
        of_line = tried_of_line(version)
        if version in TRIED_VERSIONS:
            log.info("the sidecar was tried on this version of Pulsar", pulsar=version)
        elif of_line:
            log.info(
                "not tried on this patch version of Pulsar, but on others of its line", pulsar=version, tried=of_line
            )
        else:
            log.warning("the sidecar was not tried on this version of Pulsar", pulsar=version, tried=TRIED_VERSIONS)

    def _log_unread(self, why: str) -> None:
        if not self._logged:
            self._logged.add("")
            log.warning("the brokers' version of Pulsar could not be read", error=why, tried=TRIED_VERSIONS)
