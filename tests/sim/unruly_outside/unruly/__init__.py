"""A protocol whose firmware breaks its rules: Postcard, where a letter's tag selects the violation."""
