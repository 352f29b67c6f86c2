"""Unit tests of the command line and the live screen."""
