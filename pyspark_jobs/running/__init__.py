"""How jobs run on Spark, whatever they look for: sessions, directories, and tasks over Arrow batches."""
