"""Text of a page with too little contrast: below 4.5 to its background (WCAG 2.2, 1.4.3)."""

from __future__ import annotations

import json

_SCRIPT = r"""(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const over = (colour, below) => {
    canvas.globalCompositeOperation = 'copy'; canvas.fillStyle = below; canvas.fillRect(0, 0, 1, 1);
    canvas.globalCompositeOperation = 'source-over'; canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return 'rgb(' + [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)].join(',') + ')';
  };
  const light = colour => {
    const parts = colour.match(/[\d.]+/g).slice(0, 3).map(one => one / 255)
      .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = element => {
    const chain = [];
    for (let one = element; one; one = one.parentElement) chain.unshift(getComputedStyle(one).backgroundColor);
    return chain.reduce((below, colour) => over(colour, below), 'rgb(255,255,255)');
  };
  const poor = [];
  for (const one of document.querySelectorAll(WORDS)) {
    if (!one.textContent.trim() || !one.checkVisibility()) continue;
    const style = getComputedStyle(one), below = behind(one.closest('svg') ? one.closest('svg') : one);
    const ink = over(one.closest('svg') ? style.fill : style.color, below);
    const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(one.textContent.trim().slice(0, 30) + ' ' + ink + ' on ' + below);
  }
  return poor;
})()"""


def contrasts(selector: str) -> str:
    """Return a JavaScript expression: a line for each visible element of these that is hard to read."""
    return _SCRIPT.replace("WORDS", json.dumps(selector))
