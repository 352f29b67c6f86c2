"""Generated parts of the documentation: each module reads the program and returns Markdown."""
