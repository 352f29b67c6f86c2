"""Settings of pytests that tests start with pytester, in this process and without the settings of this suite."""

from __future__ import annotations

SETTINGS = """
[pytest]
addopts = --strict-markers -p no:cacheprovider
filterwarnings =
    error
    ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning
"""
"""Warnings are errors, except one that is this process's: it has imported the plug-in. Started as ``pytest`` it loads the
plug-in of an editable install before the checkout is on Python's path, so that no assertion in it is rewritten, and the
inner pytest says so; ``python -m pytest`` has the checkout on the path from the start."""
