#!/bin/sh
# One audit, from the cluster to its report: listing, dump, audit against the previous one, clean-up.
set -eu

usage() {
    cat <<'TEXT'
Usage: nightly.sh [--help]

Makes a listing and a dump, audits them against the previous audit, and removes old ones. Run it once a day: a ledger
is deletable when two audits, far enough apart, found it unreferenced and unchanged. It deletes no ledger: read the
report, then run "pulsar-sidecar audit apply".

Everything is set in the environment:
  AUDIT_DIRECTORY      where listings/, dumps/ and audits/ are kept; required
  METADATA_STORE_URL   as in broker.conf, zk:HOST:PORT[,HOST:PORT][/CHROOT] or etcd:http://HOST:PORT; required
  DUMP_SOURCE          another source for the dump, such as an observer's zk://HOST:PORT; then the cursors of
                       compaction are still read from METADATA_STORE_URL
  OFFLOAD_LOCATIONS    buckets and directories of tiered storage to audit, in the form of offloadAllowedLocations,
                       separated by spaces; no copy there can be deleted without --offload-exclusive-to-cluster
  AUDIT_ENGINE         embedded (default); spark for submit.sh beside this file; none to make the inputs only
  AUDIT_OPTIONS        more options for the audit, such as "--min-age-hours 96"; nothing can be deleted without
                       --bookkeeper-exclusive-to-cluster, your assurance that this BookKeeper serves only this Pulsar cluster
  METRICS_DIRECTORY    where the node exporter's textfile collector reads; metrics.prom is put there
  PUSHGATEWAY_URL      a group of a Pushgateway, such as http://HOST:9091/metrics/job/pulsar-sidecar-audit; the
                       metrics replace what it holds. For audits in pods: each Pulsar cluster needs a group of its
                       own
  KEEP                 how many listings, dumps and audits to keep in any case; 7
  KEEP_DAYS            and everything that is younger; 30
  PULSAR_SIDECAR_METADATA_STORE_AUTH   the credential for ZooKeeper, if it needs one

Exit codes: 0 clean; 2 there are findings; 1 an error, a failed guard, or metrics that could not be pushed.
TEXT
}

case "${1:-}" in
    "") ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 1 ;;
esac
if [ -z "${AUDIT_DIRECTORY:-}" ] || [ -z "${METADATA_STORE_URL:-}" ]; then
    echo "set AUDIT_DIRECTORY and METADATA_STORE_URL; see nightly.sh --help" >&2
    exit 1
fi

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
now=$(date -u +%Y%m%dT%H%M%SZ)
listing=$AUDIT_DIRECTORY/listings/$now
dump=$AUDIT_DIRECTORY/dumps/$now
audit=$AUDIT_DIRECTORY/audits/$now
mkdir -p "$AUDIT_DIRECTORY/listings" "$AUDIT_DIRECTORY/dumps" "$AUDIT_DIRECTORY/audits"

# Whatever these end with, it is not a finding: every failure here is a 1.
# The listing first: a ledger that is linked in between is then in the dump.
pulsar-sidecar ledgers list --metadata-store-url "$METADATA_STORE_URL" --with-metadata --output "$listing" || exit 1
offloaded=
if [ -n "${OFFLOAD_LOCATIONS:-}" ]; then
    offloaded=$AUDIT_DIRECTORY/listings/$now-offloaded
    set --
    for location in $OFFLOAD_LOCATIONS; do set -- "$@" --location "$location"; done
    pulsar-sidecar offload list --metadata-store-url "$METADATA_STORE_URL" "$@" --output "$offloaded" || exit 1
fi
if [ -n "${DUMP_SOURCE:-}" ]; then
    set -- --source "$DUMP_SOURCE" --cursors-from "$METADATA_STORE_URL"
else
    case $METADATA_STORE_URL in
        etcd:*) set -- --source "$METADATA_STORE_URL" ;;
        *) set -- --source "zk://${METADATA_STORE_URL#zk:}" ;;
    esac
fi
pulsar-sidecar metadata dump "$@" --output "$dump" || exit 1

previous=
for candidate in "$AUDIT_DIRECTORY"/audits/*/summary.json; do
    if [ -f "$candidate" ]; then previous=${candidate%/summary.json}; fi
done
set -- --dump "$dump" --listing "$listing" --output "$audit"
if [ -n "$previous" ]; then set -- "$@" --previous "$previous"; fi
if [ -n "$offloaded" ]; then set -- "$@" --offloaded "$offloaded"; fi

code=0
# AUDIT_OPTIONS are words.
# shellcheck disable=SC2086
case "${AUDIT_ENGINE:-embedded}" in
    embedded) pulsar-sidecar audit run "$@" ${AUDIT_OPTIONS:-} || code=$? ;;
    spark) "$here/submit.sh" "$@" ${AUDIT_OPTIONS:-} || code=$? ;;
    none) ;;
    *) echo "AUDIT_ENGINE is embedded, spark or none" >&2; exit 1 ;;
esac

# Without an audit there are no findings (a Python that does not find its file ends with 2, too).
if [ "$code" -eq 2 ] && [ ! -f "$audit/summary.json" ]; then code=1; fi

if [ -n "${METRICS_DIRECTORY:-}" ] && [ -f "$audit/metrics.prom" ]; then
    mkdir -p "$METRICS_DIRECTORY"
    # The collector must never see half a file, and reads as another user: an audit is its owner's alone.
    cp "$audit/metrics.prom" "$METRICS_DIRECTORY/.pulsar_sidecar_audit.prom.$$"
    chmod 0644 "$METRICS_DIRECTORY/.pulsar_sidecar_audit.prom.$$"
    mv "$METRICS_DIRECTORY/.pulsar_sidecar_audit.prom.$$" "$METRICS_DIRECTORY/pulsar_sidecar_audit.prom"
fi
if [ -n "${PUSHGATEWAY_URL:-}" ] && [ -f "$audit/metrics.prom" ]; then
    pulsar-sidecar audit push "$audit" --group-url "$PUSHGATEWAY_URL" || code=1
fi
pulsar-sidecar audit prune "$AUDIT_DIRECTORY" --keep "${KEEP:-7}" --older-than-days "${KEEP_DAYS:-30}" --execute ||
    exit 1
exit "$code"
