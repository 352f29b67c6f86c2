"""A protocol whose firmware does what firmware must not: Postcard, where a letter's tag says what goes wrong."""
