"""Inputs of an audit: dumps of a metadata store and listings of the existing ledgers."""
