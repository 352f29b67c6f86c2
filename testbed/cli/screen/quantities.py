"""Numbers in few characters, for columns."""

from __future__ import annotations

from typing import Final

_STEPS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY: Final = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def scaled(value: float) -> str:
    """With three digits, in powers of 1000: 0, 17, 1.23k, 45.6M."""
    for least, prefix in _STEPS:
        if value >= 0.9995 * least:
            return _three(value / least) + prefix
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"


def size(count: int) -> str:
    """Bytes, in powers of 1024: 812, 1.23K, 45.6M."""
    for least, prefix in _BINARY:
        if count >= 0.9995 * least:
            return _three(count / least) + prefix
    return str(count)


def share(value: float) -> str:
    """Of one processor: 0%, 7%, 153%."""
    return f"{100 * value:.0f}%"


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
