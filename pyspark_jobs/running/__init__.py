"""Common parts of Spark jobs: sessions, directories, and tasks over Arrow batches."""
