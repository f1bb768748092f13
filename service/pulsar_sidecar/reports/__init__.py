"""Shared parts of analyses over tables: their directories' documents, their schemas, and pages of findings."""
