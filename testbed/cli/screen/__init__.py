"""Screen of ``testbed top``. Drawing depends only on a snapshot, and the handling of keys needs no terminal."""
