"""Shipped clusters, one TOML file each: ``testbed up star-4``. Its first line says what it is for."""
