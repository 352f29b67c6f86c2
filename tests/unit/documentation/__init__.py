"""Tests of the documentation's build and of its generated parts."""
