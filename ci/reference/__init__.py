"""Generated parts of the documentation: each module reads the program's definitions and returns Markdown."""
