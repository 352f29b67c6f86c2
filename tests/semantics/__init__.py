"""Tests that every datapath gives an impairment the same meaning."""
