"""The features: one folder each, from its decisions to its page. A feature never imports another."""
