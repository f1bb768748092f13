"""The dashboard: pages for browsers, and a client of the REST server in the same process.

Invariant: a page shows and does only what the REST routes return and do for the caller's own credential.
"""
