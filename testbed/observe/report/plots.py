"""Style of the plots, and conversion of Matplotlib figures into SVG for pages.

Text is not converted to paths, and every colour is a variable of the page's style sheet, so that plots follow the page's
dark or light theme. Matplotlib does not support variables: figures are drawn with placeholder colours, which are replaced in
the SVG text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from testbed.observe.format.quantities import format_time, format_value
from testbed.observe.report.pages import Table, render
from testbed.spec.units import format_size

# Placeholder colours; `_VARIABLES` has the variable of each.
INK: Final = "#010fe1"
MUTED: Final = "#020fe2"
GRID: Final = "#030fe3"
PAPER: Final = "#040fe4"
FAULT: Final = "#050fe5"
SERIES: Final = ("#110fe1", "#120fe2", "#130fe3", "#140fe4", "#150fe5", "#160fe6", "#170fe7", "#180fe8")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "h")
LINES: Final = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
MAX_SERIES: Final = 2 * len(SERIES)
"""Number of distinguishable series: each colour with filled and with hollow markers."""

_VARIABLES: Final = {
    INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper-value", FAULT: "fault",
    **{placeholder: f"series-{number}" for number, placeholder in enumerate(SERIES, 1)},
}  # fmt: skip
_FONT: Final = "DejaVu Sans"  # Matplotlib's default; wider than a page's font, so that no text is cut off
_STYLE: Final[dict[Any, object]] = {  # Any: Matplotlib's types list every key literally
    "svg.fonttype": "none", "font.family": _FONT, "font.size": 9.5, "text.color": INK, "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID, "axes.facecolor": "none", "axes.grid": True, "axes.axisbelow": True, "axes.titlesize": 10,
    "axes.titlelocation": "left", "axes.titlecolor": MUTED, "axes.spines.top": False, "axes.spines.right": False,
    "axes.spines.left": False, "axes.labelsize": 9.5, "figure.facecolor": "none", "grid.color": GRID,
    "grid.linewidth": 0.7, "lines.linewidth": 1.8, "lines.markersize": 4.5, "legend.frameon": False,
    "legend.fontsize": 9, "patch.linewidth": 0, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelsize": 9,
    "ytick.labelsize": 9, "xtick.major.size": 3, "ytick.major.size": 0, "hatch.color": FAULT, "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
}  # fmt: skip

_TICKS_WIDE: Final = (1.0, 2.0, 5.0)  # positions of ticks within a decade
_TICKS_NARROW: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)

WIDTH: Final = 7.6  # inches, of 72 points; a page scales it


def series_style(number: int) -> dict[str, Any]:
    """Return the colour and markers of a series, as keywords of Matplotlib's `plot`."""
    index = number % len(SERIES)
    style: dict[str, Any] = {"color": SERIES[index], "marker": MARKERS[index]}
    return style if number < len(SERIES) else style | {"markerfacecolor": "none"}


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of a page. name: unique in the page. caption: content and source. alt_text: description for screen readers.
    table: the plotted values; None: there are too many."""

    name: str
    title: str
    svg: Markup
    caption: str
    alt_text: str
    table: Table | None = None


@contextmanager
def new_figure(height: float, width: float = WIDTH) -> Iterator[Figure]:
    """Context manager for a figure in this style: draw and write the figure inside the block. height, width: inches."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        yield figure


def add_legend(axes: Axes, title: str | None = None) -> None:
    """Add a legend at the place where it covers the least."""
    # "best" is also the default, but if it is not given, Matplotlib warns of a search that takes more than a second.
    axes.legend(labelcolor=INK, title=title, loc="best")


def to_svg(figure: Figure, name: str, alt_text: str) -> Markup:
    """Convert a figure to an SVG element for a page. name: prefix of its identifiers, which must be unique in the page."""
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    box = re.findall(r'viewBox="([^"]+)"', text)[0]
    text = text[text.index(">", text.index("<svg")) + 1 :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    referenced_ids = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(
        r' id="([^"]*)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in referenced_ids else "", text
    )
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", text)
    text = re.sub(r"#[0-9a-f]{6}", lambda match: _variable(match[0]), text)
    text = text.replace(f"'{_FONT}'", "var(--font)")
    return render("plot.svg", box=box, alt_text=alt_text, shapes=Markup(re.sub(r"\n\s*", "\n", text)))


def _variable(colour: str) -> str:
    return f"var(--{_VARIABLES[colour]})" if colour in _VARIABLES else colour


def set_up_axis(
    axes: Axes, which: str, key: str, *, log: bool = False, zero: bool = False, narrow: bool = False
) -> None:
    """Set up an axis for the values of a key of rows, with units. which: "x" or "y". zero: a logarithmic axis includes 0.
    narrow: the range is small and needs more ticks."""
    axis: Any = axes.xaxis if which == "x" else axes.yaxis
    set_scale: Any = axes.set_xscale if which == "x" else axes.set_yscale
    if log:
        base = 2 if key.endswith("_bytes") else 10
        if zero:
            set_scale("symlog", base=base, linthresh=1, linscale=0.6)
        else:
            set_scale("log", base=base)
            if base == 10:
                axis.set_major_locator(LogLocator(base=10, subs=_TICKS_NARROW if narrow else _TICKS_WIDE, numticks=12))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_tick(key, value)))


def set_ticks(axes: Axes, values: list[float], key: str) -> None:
    """Set the ticks of the x axis to these values, with at most nine ticks."""
    step = -(-len(values) // 9)
    axes.xaxis.set_major_locator(FixedLocator(values[::step]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_tick(key, value)))


def format_tick(key: str, value: float) -> str:
    """Format a value of a key at an axis."""
    if key.endswith("_bytes"):
        return re.sub(r"(?<=\d)(?=[KMGTB])", " ", format_size(round(value)))
    if key.endswith("_ns"):
        return format_time(value) if value else "0"
    if key in ("availability", "fairness", "share"):
        return f"{value:.0%}"
    if key.endswith(("_bit_s", "_per_s")):
        return format_value(key, float(value)) if value else "0"
    return f"{value:g}"


def standalone(plot: Plot, note: str) -> str:
    """Render a plot as a separate SVG file, which follows the reader's light or dark theme. note: stored in the metadata."""
    tag, _, shapes = plot.svg.partition(">")
    return render("standalone.svg", tag=tag, shapes=shapes, note=note)
