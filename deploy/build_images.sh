#!/bin/sh
# Builds the sidecar's images from this checkout, and takes the list of what is in each out of it, into dist/.
#   BASE=python:3.11-slim@sha256:... deploy/build_images.sh [more options of docker build]
# Without BASE, Docker takes the base that the tag names today; the labels have its digest, if a registry gave it one.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git describe --always --dirty --abbrev=40 --exclude '*')
base=${BASE:-python:3.11-slim}
docker image inspect "$base" >/dev/null 2>&1 || docker pull --quiet "$base" >&2
digest=$(docker image inspect --format '{{range .RepoDigests}}{{.}}{{"\n"}}{{end}}' "$base" | sed -n '1s/.*@//p')

build() {
    image=$1:$version file=$2
    shift 2
    docker build --build-arg "BASE=$base" --build-arg "BASE_DIGEST=${digest:-unknown}" --build-arg "VERSION=$version" \
        --build-arg "REVISION=$revision" --file "$file" --tag "$image" "$@" . >&2
    for name in sbom.cdx.json NOTICE; do
        docker run --rm --entrypoint cat "$image" "/opt/pulsar-sidecar/share/doc/pulsar-sidecar/$name" \
            >"dist/${image%:*}-$version.$name"
    done
    docker image inspect --format "$image {{.Size}} bytes" "$image"
}

mkdir -p dist
build pulsar-sidecar deploy/Dockerfile "$@"
build pulsar-sidecar-audit deploy/Dockerfile --build-arg LOCK=requirements-audit.lock "$@"
build pulsar-sidecar-spark deploy/spark/Dockerfile --build-arg "SIDECAR_IMAGE=pulsar-sidecar-audit:$version" "$@"
