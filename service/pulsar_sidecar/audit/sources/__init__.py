"""What an audit works on: dumps of a metadata store and listings of the ledgers that exist."""
