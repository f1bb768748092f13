#!/bin/sh
# Lists what is in a Python environment: sbom.cdx.json (CycloneDX) and NOTICE, with licences' and notices' own words.
#   deploy/list_contents.sh TOOLS ENVIRONMENT DIRECTORY   (TOOLS: the bin of deploy/requirements-image.lock; beside pyproject.toml)
set -eu
tools=$1 python=$2/bin/python
mkdir -p "$3"
"$tools/cyclonedx-py" environment --pyproject pyproject.toml --mc-type application \
    --output-reproducible --output-file "$3/sbom.cdx.json" "$python"
{
    printf 'pulsar-sidecar\nLicensed under the Apache License, Version 2.0.\n\n'
    printf 'It comes with these packages, each under its own licence.\n\n'
    "$tools/pip-licenses" --python="$python" --from=mixed --with-urls --with-license-file --with-notice-file \
        --no-license-path --ignore-packages pulsar-sidecar --format=plain-vertical | grep -vx UNKNOWN
} > "$3/NOTICE"
cp LICENSE "$3/LICENSE"
