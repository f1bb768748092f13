"""What is known of deduplication without publishing anything to a topic that exists."""
