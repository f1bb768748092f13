"""Parts of a Spark job: sessions, directories, and tasks over Arrow batches."""
