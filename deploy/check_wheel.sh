#!/bin/sh
# Installs a wheel and the locked dependencies, and nothing else, into a fresh environment, and tries it there.
#   deploy/check_wheel.sh dist/pulsar_sidecar-0.1.0-py3-none-any.whl [python3]
set -eu
wheel=$(realpath "$1")
lock=$(realpath "$(dirname "$0")/requirements.lock")
audit_lock=$(realpath "$(dirname "$0")/requirements-audit.lock")
version=$(basename "$wheel" | cut -d- -f2)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${2:-python3}" -m venv "$scratch/venv"
cd "$scratch"  # no source tree beside the interpreter
venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement "$lock"
ls venv/lib/python*/site-packages | sort > before
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$wheel"
ls venv/lib/python*/site-packages | sort > after

added=$(comm -13 before after | tr '\n' ' ')
wanted="pulsar_sidecar pulsar_sidecar-$version.dist-info pyspark_jobs "
[ "$added" = "$wanted" ] || { echo "the wheel installs $added, not $wanted" >&2; exit 1; }
test -f venv/lib/python*/site-packages/pulsar_sidecar/py.typed
venv/bin/python -m pip check
shown=$(venv/bin/pulsar-sidecar --version)
case "$shown" in *"$version"*) ;; *) echo "--version shows $shown, not $version" >&2; exit 1 ;; esac
venv/bin/python -m pulsar_sidecar --help > help
venv/bin/pulsar-sidecar serve --help > help
refused=$(venv/bin/pulsar-sidecar audit show nowhere 2>&1) && exit 1
case "$refused" in *"pulsar-sidecar[audit]"*) ;; *) echo "without Arrow: $refused" >&2; exit 1 ;; esac
venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement "$audit_lock"
refused=$(venv/bin/pulsar-sidecar audit show nowhere 2>&1) && exit 1
case "$refused" in *nowhere*) ;; *) echo "with Arrow: $refused" >&2; exit 1 ;; esac
echo "$(basename "$wheel") works in a fresh environment"
