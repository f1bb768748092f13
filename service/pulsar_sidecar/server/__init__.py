"""The HTTP server of the REST API."""
