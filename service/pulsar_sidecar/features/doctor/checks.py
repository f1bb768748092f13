"""Findings about a cluster, with remedies, in the order in which to work on them.

Pure: facts in, findings out. A failed look-up is at least a warning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pulsar_sidecar.features.doctor.broker_settings import settings_findings
from pulsar_sidecar.features.doctor.facts import (
    BookieFacts,
    BrokerFacts,
    BrokersFacts,
    Facts,
    OrError,
    OwnFacts,
    StoreFacts,
)
from pulsar_sidecar.features.doctor.findings import Finding, Level
from pulsar_sidecar.model.errors import NotAuthenticatedError, NotAuthorizedError, SidecarError
from pulsar_sidecar.model.pulsar_versions import TESTED_VERSIONS, tested_of_line

STORE, BROKERS, BOOKIES, CLOCKS, RIGHTS = "metadata store", "brokers", "bookies", "clocks", "rights"
_OLDEST: Final[Mapping[str, tuple[int, ...]]] = {"ZooKeeper": (3, 6), "etcd": (3, 4)}
_TOLERATED_SECONDS: Final = 3.0
"""Tolerated difference; a broker's response has whole seconds, and is delayed."""
_SYNCHRONISE: Final = "synchronise the clocks of all machines (chrony, systemd-timesyncd)"


def examine(facts: Facts) -> list[Finding]:
    """Return every finding, in a fixed order."""
    return [
        *_store(facts.store, deletes=facts.own.deletes),
        *_brokers(facts.brokers),
        *_rights(facts.brokers),
        *settings_findings(_settings(facts.brokers), facts.own.cluster_name, facts.own.jute_max_buffer),
        *_own_topics(facts.brokers, deletes=facts.own.deletes),
        *_bookies(facts.bookies),
        *_clocks(facts.store, facts.brokers),
        *_own(facts.own),
    ]


def _store(store: StoreFacts, *, deletes: bool) -> Iterator[Finding]:
    yield from _servers(store)
    match store.missing:
        case SidecarError() as error:
            forms = "zk:host:port,host:port/chroot or etcd:http://host:port"
            remedy = f"start it, or correct metadataStoreUrl ({forms}) and metadataStoreAuth"
            yield Finding(Level.FAILED, STORE, f"{store.hosts} cannot be read: {_reason(error)}", remedy)
            return
        case [_, *_] as paths:
            remedy = "give metadataStoreUrl the brokers' own value, chroot included, and ledgersRootPath BookKeeper's"
            yield Finding(Level.FAILED, STORE, f"{store.hosts} has no {' and no '.join(paths)}", remedy)
        case _:
            yield Finding(Level.OK, STORE, f"{store.hosts} has the metadata of a Pulsar cluster and its ledgers")
    match store.undeletable:
        case SidecarError() as error:
            yield _not_examined(STORE, "the sidecar's permissions", error)
        case [_, *_] as paths:
            level = Level.FAILED if deletes else Level.WARNING
            remedy = "set metadataStoreAuth to a credential with the permission DELETE there"
            yield Finding(level, RIGHTS, f"the sidecar may not delete nodes below {' and '.join(paths)}", remedy)
        case _:
            yield Finding(Level.OK, RIGHTS, "the sidecar may delete ledgers in the metadata store")


def _servers(store: StoreFacts) -> Iterator[Finding]:
    for address, server in store.servers.items():
        if isinstance(server, SidecarError):
            remedy = "start it, or take it out of metadataStoreUrl"
            yield Finding(Level.WARNING, STORE, f"the server {address} does not respond: {_reason(server)}", remedy)
        elif server.version is None:
            yield Finding(Level.OK, STORE, f"the server {address} responds but does not report its version")
        elif _numbers(server.version) < (oldest := _OLDEST[server.product]):
            remedy = f"upgrade it to {server.product} {oldest[0]}.{oldest[1]} or later"
            yield Finding(Level.FAILED, STORE, f"the server {address} runs {server.product} {server.version}", remedy)
        else:
            mode = f", {server.mode}" if server.mode else ""
            yield Finding(Level.OK, STORE, f"the server {address} runs {server.product} {server.version}{mode}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _brokers(brokers: BrokersFacts) -> Iterator[Finding]:
    for address, failure in brokers.addresses.items():
        if failure is None:
            yield Finding(Level.OK, BROKERS, f"{address} answers")
        elif not _refuses(failure):
            remedy = "start a broker there, or correct webServiceUrl and brokerServiceUrl, and the tls* settings"
            yield Finding(Level.FAILED, BROKERS, f"{address} does not respond: {_reason(failure)}", remedy)
    match brokers.registered:
        case SidecarError() as error:
            yield _not_examined(BROKERS, "the list of brokers", error)
        case []:
            remedy = "start the brokers, or correct metadataStoreUrl"
            yield Finding(Level.FAILED, BROKERS, "no broker is registered in the metadata store", remedy)
        case found:
            yield from _versions(found)
    match brokers.mismatch:
        case SidecarError() as error if not _refuses(error):
            yield _not_examined(BROKERS, "the brokers' metadata store", error)
        case str() as difference:
            difference, _, remedy = difference.rpartition("; ")
            yield Finding(Level.FAILED, BROKERS, difference, remedy)
        case None:
            yield Finding(Level.OK, BROKERS, "the brokers use the sidecar's metadata store and ledgers")
        case _:
            return  # the finding about rights has it


def _versions(brokers: Sequence[BrokerFacts]) -> Iterator[Finding]:
    by_version: dict[str, list[str]] = {}
    for broker in brokers:
        if isinstance(broker.version, SidecarError):
            remedy = "start it again; its registration ends with its session"
            yield Finding(Level.WARNING, BROKERS, f"{broker.name} does not respond: {_reason(broker.version)}", remedy)
        else:
            by_version.setdefault(broker.version or "an unknown version", []).append(broker.name)
    for version, names in by_version.items():
        runs = f"{', '.join(sorted(names))} {'runs' if len(names) == 1 else 'run'} Pulsar {version}"
        if version in TESTED_VERSIONS:
            yield Finding(Level.OK, BROKERS, f"{runs}, on which the sidecar was tested")
        elif of_line := tested_of_line(version):
            yield Finding(Level.OK, BROKERS, f"{runs}; the sidecar was tested on {' and '.join(of_line)} of this line")
        else:
            remedy = f"test the sidecar on a test cluster first; it was tested on {', '.join(TESTED_VERSIONS)}"
            yield Finding(Level.WARNING, BROKERS, f"{runs}, on which the sidecar was not tested", remedy)


def _rights(brokers: BrokersFacts) -> Iterator[Finding]:
    refusal = next(filter(_refuses, _failures(brokers)), None)
    if isinstance(refusal, NotAuthenticatedError):
        remedy = "set authPlugin and authParams to a credential that brokers accept"
        yield Finding(Level.FAILED, RIGHTS, f"brokers do not authenticate the sidecar: {_reason(refusal)}", remedy)
    elif refusal is not None:
        remedy = "add the sidecar's role to the brokers' superUserRoles"
        yield Finding(Level.FAILED, RIGHTS, f"brokers refuse the sidecar: {_reason(refusal)}", remedy)
    elif _settings(brokers):
        yield Finding(Level.OK, RIGHTS, "brokers accept the sidecar as a superuser")


def _failures(brokers: BrokersFacts) -> Iterator[SidecarError]:
    results: list[object] = [*brokers.addresses.values(), brokers.mismatch, brokers.own_topics]
    if not isinstance(brokers.registered, SidecarError):
        results += [each for broker in brokers.registered for each in (broker.version, broker.settings)]
    return (each for each in results if isinstance(each, SidecarError))


def _refuses(error: SidecarError) -> bool:
    return isinstance(error, NotAuthenticatedError | NotAuthorizedError)


def _settings(brokers: BrokersFacts) -> Mapping[str, Mapping[str, object]]:
    if isinstance(brokers.registered, SidecarError):
        return {}
    return {
        broker.name: broker.settings for broker in brokers.registered if not isinstance(broker.settings, SidecarError)
    }


def _own_topics(brokers: BrokersFacts, *, deletes: bool) -> Iterator[Finding]:
    match brokers.own_topics:
        case SidecarError() as error if not _refuses(error):
            yield _not_examined("topic policies", "the sidecar's own topics", error)
        case [_, *_] as problems:
            yield from (_warning("topic policies", problem) for problem in problems)
        case []:
            yield Finding(
                Level.OK, "topic policies", "the sidecar's topics in pulsar/system have the policies they need"
            )
        case None if deletes:
            yield Finding(Level.OK, "topic policies", "the sidecar's topics do not exist yet; `serve` creates them")
        case _:
            return


def _bookies(bookies: OrError[Sequence[BookieFacts]]) -> Iterator[Finding]:
    match bookies:
        case SidecarError() as error:
            yield _not_examined(BOOKIES, "the list of bookies", error)
        case []:
            remedy = "start the bookies, or correct ledgersRootPath"
            yield Finding(Level.FAILED, BOOKIES, "no bookie is registered in the metadata store", remedy)
        case found:
            answering = [bookie.name for bookie in found if bookie.failure is None]
            if answering:
                yield Finding(Level.OK, BOOKIES, f"{', '.join(answering)} {_verb(answering)}")
            for bookie in found:
                if bookie.failure is not None:
                    remedy = "start it, and let this machine reach its port"
                    yield Finding(
                        Level.WARNING, BOOKIES, f"{bookie.name} does not respond: {_reason(bookie.failure)}", remedy
                    )
                elif bookie.read_only:
                    remedy = "free space on its disks, or add bookies"
                    yield Finding(Level.WARNING, BOOKIES, f"{bookie.name} is read-only", remedy)


def _clocks(store: StoreFacts, brokers: BrokersFacts) -> Iterator[Finding]:
    if isinstance(store.ahead_seconds, SidecarError):
        if not isinstance(store.missing, SidecarError):
            yield _not_examined(CLOCKS, "the metadata store's clock", store.ahead_seconds)
        return
    ahead = {"this machine's clock": store.ahead_seconds}
    if not isinstance(brokers.registered, SidecarError):
        ahead |= {
            f"the clock of broker {broker.name}": broker.ahead_seconds
            for broker in brokers.registered
            if broker.ahead_seconds is not None
        }
    wrong = {name: seconds for name, seconds in ahead.items() if abs(seconds) > _TOLERATED_SECONDS}
    for name, seconds in wrong.items():
        where = "ahead of" if seconds > 0 else "behind"
        text = f"{name} is {abs(seconds):,.0f} s {where} the metadata store's"
        yield Finding(Level.WARNING, CLOCKS, f"{text}, so messages come due at a different time", _SYNCHRONISE)
    if not wrong:
        text = f"{len(ahead)} clocks are" if len(ahead) > 1 else "this machine's clock is"
        yield Finding(Level.OK, CLOCKS, f"{text} within {_TOLERATED_SECONDS:.0f} s of the metadata store's")


def _own(own: OwnFacts) -> Iterator[Finding]:
    yield from (_warning("settings", warning) for warning in own.warnings)
    for feature in own.features:
        if feature.on:
            yield Finding(Level.OK, "settings", f"{feature.name} is on: {feature.purpose}")
        else:
            yield Finding(Level.OFF, "settings", f"{feature.name} is off: {feature.purpose}", f"set {feature.setting}")


def _warning(subject: str, text: str) -> Finding:
    """Split a text at its last semicolon, which precedes its remedy, if any."""
    problem, _, remedy = text.rpartition("; ")
    return Finding(Level.WARNING, subject, problem or remedy, remedy if problem else None)


def _reason(error: SidecarError) -> str:
    """Return the error without its own advice, which addresses someone who retries."""
    return str(error).partition("; ")[0]


def _not_examined(subject: str, what: str, error: SidecarError) -> Finding:
    return Finding(
        Level.WARNING,
        subject,
        f"could not examine {what}: {_reason(error)}",
        "run this again once the other findings are fixed",
    )


def _verb(names: Sequence[str]) -> str:
    return "answers" if len(names) == 1 else "answer"
