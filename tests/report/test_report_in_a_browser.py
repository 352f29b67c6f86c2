"""A report in a browser: no errors, keyboard access, and readable text in light and dark mode."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from browser import Browser
from testbed.cli.main import testbed as command
from tests.contrasts import contrasts
from tests.report.synthetic_runs import SECOND, fault_events, message_rows, ping_pong_rows, write_run

pytestmark = pytest.mark.requires("chromium")

TEXT_ELEMENTS = "h1, h2, h3, p, li, a, th, td, dt, dd, caption, figcaption, summary, pre, svg.plot text"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    zero = 5 * SECOND
    events = [{"event": "repetition begins"}, *fault_events("loss 10% on n1", SECOND // 5, SECOND // 2, zero)]
    runs = [
        write_run(folder / "a", [*ping_pong_rows(), *message_rows(zero)], events=events),
        write_run(folder / "b", ping_pong_rows(1.2), protocol="tcp"),
    ]
    result = CliRunner().invoke(command, ["report", *map(str, runs), "-o", str(folder / "report.html")])
    assert result.exit_code == 0, result.output
    return folder / "report.html"


@pytest.fixture
def open_report(browser: Browser, report: Path) -> Browser:
    browser.messages.clear()
    browser.open(report)
    return browser


def test_the_page_loads_completely_without_console_messages(open_report: Browser) -> None:
    assert open_report.evaluate("document.title") == "2 runs: pingpong on star-4 · testbed report"
    assert open_report.evaluate("[...document.querySelectorAll('h2')].map(heading => heading.textContent)") == [
        "Verdicts", "Comparison", "Cluster", "Timeline", "Plots", "Figures", "How to repeat it",
    ]  # fmt: skip
    assert open_report.evaluate("document.querySelectorAll('header, nav, main, footer').length") == 4
    assert open_report.evaluate(
        "[...document.querySelectorAll('figure svg')].every(figure => figure.getBoundingClientRect().height > 60)"
    )
    assert open_report.messages == []


def test_all_parts_of_the_page_have_accessible_names(open_report: Browser) -> None:
    tree = open_report.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"figure", "image", "table", "region", "navigation", "img"}
    nodes = [node for node in tree if node.get("role", {}).get("value") in roles and not node.get("ignored")]
    assert {node["role"]["value"] for node in nodes} >= {"figure", "table", "region", "navigation"}
    unnamed_roles = [node["role"]["value"] for node in nodes if not node.get("name", {}).get("value")]
    assert unnamed_roles == []


def test_the_tab_key_reaches_every_link_summary_and_scrollable_table(open_report: Browser) -> None:
    expected = open_report.evaluate("document.querySelectorAll('a, summary, .scrolls').length")
    hidden = open_report.evaluate("[...document.querySelectorAll('details:not([open]) .scrolls')].length")
    reached = []
    for _ in range(expected + 5):
        open_report.press("Tab", 9)
        reached.append(open_report.evaluate(
            "(() => { const all = [...document.querySelectorAll('a, summary, .scrolls')]; "
            "return all.indexOf(document.activeElement); })()"
        ))  # fmt: skip
    assert reached[0] == 0  # the link that skips to the verdict
    assert len(set(reached) - {-1}) == expected - hidden


def test_the_skip_link_leads_to_the_verdict(open_report: Browser) -> None:
    open_report.press("Tab", 9)
    assert open_report.evaluate("document.activeElement.getBoundingClientRect().top >= 0")
    open_report.press("Enter", 13)
    assert open_report.evaluate("location.hash") == "#verdict"


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_sufficient_contrast_in_light_and_dark_mode(open_report: Browser, dark: bool) -> None:
    open_report.emulate(dark=dark)
    open_report.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert open_report.evaluate(contrasts(TEXT_ELEMENTS)) == []


def test_light_and_dark_mode_differ(open_report: Browser, tmp_path: Path) -> None:
    for dark in (False, True):
        open_report.emulate(dark=dark)
        open_report.screenshot(tmp_path / f"{dark}.png")
    light, dark_mode = (tmp_path / "False.png").read_bytes(), (tmp_path / "True.png").read_bytes()
    assert struct.unpack(">II", light[16:24]) == struct.unpack(">II", dark_mode[16:24]) == (1200, 900)
    assert light != dark_mode
    background = "getComputedStyle(document.body).backgroundColor"
    open_report.emulate()
    assert open_report.evaluate(background) == "rgb(251, 250, 248)"
    open_report.emulate(dark=True)
    assert open_report.evaluate(background) == "rgb(20, 23, 27)"


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_is_never_wider_than_its_window(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_texts_of_a_plot_do_not_overlap(open_report: Browser) -> None:
    """The page's fonts differ from those of the plot's layout."""
    overlaps = open_report.evaluate("""[...document.querySelectorAll('svg.plot')].flatMap(plot => {
      const boxes = [...plot.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
      return boxes.flatMap(([first, a], place) => boxes.slice(place + 1)
        .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        .map(([second]) => first + ' / ' + second));
    })""")
    assert overlaps == []


def test_the_print_layout_truncates_nothing_and_omits_the_navigation(open_report: Browser) -> None:
    open_report.emulate(media="print")
    assert open_report.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert open_report.evaluate(
        "[...document.querySelectorAll('.scrolls')].every(table => getComputedStyle(table).overflowX == 'visible')"
    )
    open_report.emulate()
