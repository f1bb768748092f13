"""The command line door: a client of the REST API."""
