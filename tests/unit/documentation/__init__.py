"""Tests of the documentation's build and of what is generated for it."""
