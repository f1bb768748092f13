#!/bin/sh
# Submits the Spark job with what its executors need.
set -eu

usage() {
    cat <<'TEXT'
Usage: submit.sh --dump DIR --listing DIR --output DIR [--previous AUDIT] [other options of the job]

Runs the orphan-ledger audit on Spark: the options are the job's own, the same as of "pulsar-sidecar audit run".
Directories must be visible to the driver and to every executor under the same name. Nothing in the job reaches
ZooKeeper or the brokers.

Set in the environment:
  SIDECAR_JOB          the job's file, where pyspark_jobs is not two directories above this script
  SPARK_HOME           where Spark 4.0 to 4.3 is; without it, spark-submit is looked for in PATH
  SPARK_MASTER         such as spark://HOST:7077, yarn or k8s://https://HOST:6443; local[*] by default
  SIDECAR_WHEEL        the wheel of pulsar-sidecar, for executors that have only its Python packages (numpy, pyarrow,
                       protobuf, cramjam, msgspec); not needed where pulsar-sidecar itself is installed
  SPARK_DRIVER_MEMORY  3g by default, which was measured to be enough for 10 million ledgers in local mode
  SPARK_SUBMIT_OPTIONS more options for spark-submit, such as "--conf spark.executor.memory=4g"; what the job sets by
                       itself (Arrow batches, partitions, no adaptive execution, in local mode a Java that compiles
                       once: -XX:TieredStopAtLevel=1) can be set here too, and wins

Exit codes: 0 clean; 2 there are findings; 1 an error, or a failed guard.

Example: SPARK_MASTER=yarn SIDECAR_WHEEL=pulsar_sidecar-0.1.0-py3-none-any.whl \
             submit.sh --dump dumps/monday --listing listings/monday --output audits/monday
TEXT
}

case "${1:-}" in
    "" ) usage >&2; exit 1 ;;
    --help | -h) usage; exit 0 ;;
esac

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
submit=spark-submit
if [ -n "${SPARK_HOME:-}" ]; then submit=$SPARK_HOME/bin/spark-submit; fi
job=${SIDECAR_JOB:-$here/../../pyspark_jobs/orphan_ledgers/job.py}
[ -f "$job" ] || { echo "there is no job at $job; set SIDECAR_JOB to its path" >&2; exit 1; }
if [ -n "${SIDECAR_WHEEL:-}" ]; then
    [ -f "$SIDECAR_WHEEL" ] || { echo "there is no wheel at $SIDECAR_WHEEL" >&2; exit 1; }
    set -- --py-files "$SIDECAR_WHEEL" "$job" "$@"
else
    set -- "$job" "$@"
fi
master=${SPARK_MASTER:-local[*]}
java=
# Workers read and decode; what is left for a driver on this machine runs too short to be worth compiling twice.
case "$master" in local*) java='--driver-java-options -XX:TieredStopAtLevel=1' ;; esac
# $java and SPARK_SUBMIT_OPTIONS are words.
# shellcheck disable=SC2086
exec "$submit" --master "$master" --name "pulsar-sidecar-$(basename "$(dirname "$job")")" $java \
    --driver-memory "${SPARK_DRIVER_MEMORY:-3g}" ${SPARK_SUBMIT_OPTIONS:-} "$@"
