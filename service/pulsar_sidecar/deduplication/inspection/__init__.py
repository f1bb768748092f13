"""What is known of deduplication without publishing anything to anybody's topic."""
