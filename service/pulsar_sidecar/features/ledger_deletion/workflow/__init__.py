"""The feature's only modules that wait, log, lock or start threads."""
