"""The image's HEALTHCHECK: a request to the sidecar of this container, at the address in its environment.

With an argument it requests that path instead of `/livez`: `/readyz` fails while the cluster is down.

Where a configuration file sets `listen` or TLS, or callers need certificates, give the container a check of its own.
"""

import os
import ssl
import sys
import urllib.request

host, _, port = os.environ.get("PULSAR_SIDECAR_LISTEN", "127.0.0.1:8750").rpartition(":")
here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - where it listens
scheme = "https" if "PULSAR_SIDECAR_LISTEN_TLS_CERTIFICATE_FILE_PATH" in os.environ else "http"
path = sys.argv[1] if sys.argv[1:] else "/livez"
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it asks itself, and tells it nothing
with urllib.request.urlopen(f"{scheme}://{here}:{port}{path}", timeout=8, context=context):  # noqa: S310 - never a file
    pass
