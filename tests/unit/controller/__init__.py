"""Unit tests of checkers, scenarios, verdicts and run folders."""
