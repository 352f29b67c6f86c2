"""Shipped clusters, one TOML file each: ``testbed up star-4``. The first line of a file is the purpose of the cluster."""
