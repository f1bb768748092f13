"""A topic's backlog: its waiting entries and their due times, read without a consumer."""
