"""Unit tests of frame fates: chances, rules, hash and replay."""
