"""What any Spark job needs: sessions, directories, and tasks over Arrow batches."""
