"""A running cluster as it looks at one moment, gathered every second at little cost."""
