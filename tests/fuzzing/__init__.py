"""schemathesis against the OpenAPI document of a running sidecar."""
