"""A browser, one for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as page_browser:
        yield page_browser
