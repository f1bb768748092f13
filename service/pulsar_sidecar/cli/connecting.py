"""The global options, with pulsar-admin's names, and the client and the format that follow from them.

Precedence: flag, then ``PULSAR_SIDECAR_*``, then ``client.conf``, except the address, since ``webServiceUrl`` in
``client.conf`` is a broker's. Invariant: the token appears in no message.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.output import Format
from pulsar_sidecar.features.audit import requests as audit
from pulsar_sidecar.features.audit.sources.manifests import Manifest
from pulsar_sidecar.features.doctor.findings import Finding
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest
from pulsar_sidecar.features.duplicates.requests import (
    DuplicatesOutcome,
    DuplicatesRequest,
    ExtractRequest,
    VerifyRequest,
)
from pulsar_sidecar.features.duplicates.verify import VerifiedTopic
from pulsar_sidecar.model.addresses import is_loopback
from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.names import TopicDomain, java_url_encode, parse_topic_name
from pulsar_sidecar.model.progress import Report, ReportCount
from pulsar_sidecar.settings.sources import client_conf_settings, environment_settings

if TYPE_CHECKING:
    from pulsar_sidecar.cli.client import SidecarClient
    from pulsar_sidecar.demo.run import DemoReport
    from pulsar_sidecar.features.deduplication.inspection.lag_limits import LagLimits
    from pulsar_sidecar.features.deduplication.results import StuckReport
    from pulsar_sidecar.features.publishing.requests import FilePublishResult, PublishFileRequest
    from pulsar_sidecar.identity.credentials import ClientCertificate, ClientCredentials
    from pulsar_sidecar.local_cluster.spec import Role

_T = TypeVar("_T")
_NAMESPACE_PARTS = 2
_TOKEN_PLUGINS = frozenset({"token", "org.apache.pulsar.client.impl.auth.AuthenticationToken"})

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic")]
NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="tenant/namespace")]
OptionalScope = Annotated[
    str | None,
    typer.Argument(
        metavar="SCOPE",
        help="persistent://tenant/namespace/topic, tenant/namespace, or a tenant. Default: all topics.",
    ),
]
Subscription = Annotated[
    str | None, typer.Option("--subscription", "-s", help="Only this subscription. Default: all durable ones.")
]
LedgerIdArgument = Annotated[int, typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID)]
NewDirectory = Annotated[
    Path, typer.Option("--output", metavar="DIR", help="The directory to create; it must not exist.")
]
MetadataStoreAuth = Annotated[
    str | None,
    typer.Option(
        "--metadata-store-auth",
        metavar="SCHEME:CREDENTIAL",
        help="For ZooKeeper: file:///path of a file with digest:user:password or sasl:user:password; or these "
        "themselves, which other users can see in the process list.",
    ),
]
LedgersRootPath = Annotated[
    str, typer.Option("--ledgers-root-path", metavar="PATH", help="BookKeeper's zkLedgersRootPath.")
]


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs of `bootstrap` that the command line starts; each reports to a callable.

    Attributes:
        serve: service with flags and a configuration file, which runs until a signal; returns the exit code.
    """

    serve: Callable[[Mapping[str, str | None], Path | None], int]
    run_demo: "Callable[[Path | None, int, Role, Report], DemoReport]"
    tear_demo_down: Callable[[Path | None, Report], None]
    find_stuck_in_dump: "Callable[[Path, str | None, LagLimits, int, bool], StuckReport]"
    take_dump: Callable[[audit.DumpRequest, Report], Manifest]
    export_listing: Callable[[audit.ListingRequest, Report], Manifest]
    export_offload_listing: Callable[[audit.OffloadListingRequest, Report], Manifest]
    perform_audit: Callable[[audit.AuditRequest, Report], audit.AuditResult]
    show_audit: Callable[[Path, Sequence[audit.FindingsTable], audit.RowsRequest], audit.AuditView]
    explain_ledger: Callable[[Path, int, Path | None], str]
    apply_audit: Callable[[audit.ApplyRequest, ReportCount], audit.AppliedPlan]
    report_audit: Callable[[Path, Path | None], Path]
    prune_archive: Callable[[Path, int, float, bool], audit.PruneResult]
    push_audit: Callable[[Path, str], None]
    verify_stored: Callable[[VerifyRequest, Report], Sequence[VerifiedTopic]]
    take_extract: Callable[[ExtractRequest, Report], ExtractManifest]
    publish_file: "Callable[[PublishFileRequest, Report, Callable[[str, int, int], None]], FilePublishResult]"
    look_for_duplicates: Callable[[DuplicatesRequest, Report], DuplicatesOutcome]
    run_doctor: Callable[[Mapping[str, str | None], Path | None], Sequence[Finding]]


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The global options that the user gave.

    Attributes:
        format: output format; the command's own option overrides the global one.
        flags: options of the connection, by the names of their settings.
        called: addresses of the sidecars that the command has called.
    """

    programs: Programs
    format: Format
    flags: Mapping[str, str] = field(repr=False)
    called: list[str] = field(default_factory=list)

    def settings(self, **flags: str | None) -> Mapping[str, str]:
        """Return all settings from flags, environment and ``client.conf``; the command's own flags win.

        They are read only now, so that they never make ``--help`` fail.
        """
        written = {**client_conf_settings(os.environ), **environment_settings(os.environ), **self.flags}
        return written | {name: text for name, text in flags.items() if text}

    def client(self, admin_url: str | None = None) -> "SidecarClient":
        """Return a client of the sidecar that the settings name, or of the one at this address."""
        from pulsar_sidecar.cli.client import SidecarClient

        settings = self.settings()
        admin_url = admin_url or settings.get("admin_url", "http://127.0.0.1:8750")
        self.called.append(admin_url)
        conf = client_conf_of(settings)
        credentials = credentials_of(conf, _certificate_of(settings))
        client = SidecarClient(
            admin_url,
            credentials,
            _seconds(settings.get("request_timeout", "60")),
            trusted=conf.tls_trust_certs_file,
            allow_insecure=conf.tls_allow_insecure_connection,
            verify_hostname=conf.tls_enable_hostname_verification,
        )
        parts = urlsplit(admin_url)
        host = parts.hostname or ""
        if credentials.is_secret and parts.scheme == "http" and not is_loopback(host):
            output.info(
                f"the token is sent unencrypted to {output.printable(host)}; serve the sidecar with TLS and use "
                "https://"
            )
        return client


Client: TypeAlias = "SidecarClient"
"""Client for annotations, because the import of requests takes longer than --help."""


class Context(typer.Context):
    """A command's context, for annotations only; typer makes a plain one, whose ``obj`` is the global options."""

    obj: GlobalOptions


def show_answer(
    ctx: Context, method: str, path: str, body: object = None, parameters: Mapping[str, Any] | None = None
) -> None:
    """Call the sidecar, and write its response as a table or as JSON."""
    output.document(ctx.obj.client().call(method, path, body, parameters), ctx.obj.format)


def show_result(
    ctx: Context,
    kind: type[_T],
    path: str,
    lines: Callable[[_T], Iterable[str]] | None = None,
    parameters: Mapping[str, Any] | None = None,
    *,
    method: str = "GET",
    body: object = None,
) -> _T:
    """Call the sidecar, write its response, as a table or as these lines, and return it as ``kind``, or a list of it.

    Raises:
        ValueError: the response is not of this kind.
    """
    from pulsar_sidecar.server.answers import parse_answer

    answer = ctx.obj.client().call(method, path, body, parameters)
    parsed = parse_answer(kind, answer)
    _write(ctx, answer, None if lines is None else lines(parsed))
    return parsed


def show_made(ctx: Context, made: object, lines: Iterable[str] | None = None) -> None:
    """Write a result that the command made itself, or a list, as REST would return it, or as a table or these lines."""
    from pulsar_sidecar.server.answers import as_json

    _write(ctx, [as_json(each) for each in made] if isinstance(made, list) else as_json(made), lines)


def _write(ctx: Context, answer: object, lines: Iterable[str] | None) -> None:
    if lines is None:
        output.document(answer, ctx.obj.format)
    else:
        output.answer(answer, lines, ctx.obj.format)


def topic_path(topic: str, *, of_any_domain: bool = False) -> str:
    """Return the REST path of a topic.

    Raises:
        InvalidInputError: the name is not a topic's, or the topic has no ledgers and ``of_any_domain`` is False.
    """
    name = parse_topic_name(topic)
    if name.domain is not TopicDomain.PERSISTENT and not of_any_domain:
        raise InvalidInputError(f"{name} has no ledgers; write persistent://tenant/namespace/topic")
    version = "/admin" if name.cluster else "/admin/v2"
    return f"{version}/{name.domain.value}/{name.namespace}/{java_url_encode(name.local_name)}"


def subscription_path(topic: str, subscription: str | None) -> str:
    """Return the REST path of a topic's subscription, or of the topic for all; raise the errors of `topic_path`."""
    path = topic_path(topic)
    return path if subscription is None else f"{path}/subscription/{java_url_encode(subscription)}"


def namespace_path(name: str, *, of_any_kind: bool = False) -> str:
    """Return the REST path of a namespace.

    Raises:
        InvalidInputError: the name is not ``tenant/namespace`` nor, with ``of_any_kind``, ``tenant/cluster/namespace``.
    """
    parts = name.split("/")
    is_v1 = of_any_kind and len(parts) == _NAMESPACE_PARTS + 1
    if not (is_v1 or len(parts) == _NAMESPACE_PARTS) or not all(parts):
        raise InvalidInputError(f"{name!r} is not a namespace; write tenant/namespace")
    version = "/admin" if is_v1 else "/admin/v2"
    return f"{version}/namespaces/{'/'.join(map(java_url_encode, parts))}"


def topic_or_namespace_path(name: str) -> str:
    """Return the REST path of a topic's full name, or of ``tenant/namespace``; raise the errors of `topic_path`."""
    is_topic = "://" in name or name.count("/") != _NAMESPACE_PARTS - 1
    return topic_path(name) if is_topic else namespace_path(name)


def scope_path(name: str | None) -> str:
    """Return the REST path of a topic, a namespace, a tenant, or everything; raise the errors of `topic_path`."""
    if name is None:
        return "/admin/v2"
    return topic_or_namespace_path(name) if "/" in name else f"/admin/v2/tenants/{java_url_encode(name)}"


def client_conf_of(settings: Mapping[str, str]) -> ClientConf:
    """Return the settings that ``client.conf`` has for every client."""

    def is_true(name: str, default: str) -> bool:
        return settings.get(name, default).strip().lower() == "true"

    trusted = settings.get("tls_trust_certs_file_path")
    return ClientConf(
        auth_plugin=settings.get("auth_plugin"),
        auth_params=settings.get("auth_params"),
        tls_trust_certs_file=Path(trusted) if trusted else None,
        tls_allow_insecure_connection=is_true("tls_allow_insecure_connection", "false"),
        tls_enable_hostname_verification=is_true("tls_enable_hostname_verification", "true"),
    )


def credentials_of(conf: ClientConf, certificate: "ClientCertificate | None" = None) -> "ClientCredentials":
    """Return the user's credentials for the sidecar; ``authParams`` without a plugin are a token's.

    Raises:
        InvalidInputError: the credentials cannot be used, or are of a kind that the sidecar does not verify.
    """
    from pulsar_sidecar.identity.credentials import AuthPlugin, parse_credentials

    plugin = conf.auth_plugin or ("token" if conf.auth_params else None)
    if plugin in _TOKEN_PLUGINS and not conf.auth_params:
        plugin = None
    credentials = parse_credentials(plugin, conf.auth_params, certificate)
    if credentials.plugin is AuthPlugin.BASIC:
        raise InvalidInputError("the sidecar verifies no passwords; use --auth-plugin token, oauth2 or tls")
    if certificate is not None and credentials.certificate is None:
        credentials = replace(credentials, certificate=certificate)
    return credentials


def _certificate_of(settings: Mapping[str, str]) -> "ClientCertificate | None":
    from pulsar_sidecar.identity.credentials import ClientCertificate

    file, key_file = settings.get("tls_certificate_file_path"), settings.get("tls_key_file_path")
    return ClientCertificate(Path(file), Path(key_file)) if file and key_file else None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise InvalidInputError(
            "--request-timeout (PULSAR_SIDECAR_REQUEST_TIMEOUT) must be seconds above 0 and below 86400, such as 60"
        )
    return seconds


def show_policy(ctx: Context, path: str, *, applied: bool = False) -> None:
    """Write the value of a policy, or null."""
    policy = ctx.obj.client().call("GET", path, parameters={"applied": "true" if applied else None})
    output.result(json.dumps(policy))
