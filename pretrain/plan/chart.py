"""Panels of lines as the text of an SVG picture, drawn without a plotting library."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT, _COLUMNS = 360, 260, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 96, 30, 42
# Told apart by those who do not see all colours: Okabe and Ito, 2008.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


@dataclass(frozen=True)
class Panel:
    """One set of axes, x logarithmic to base 2; lines by their label.

    Points that the axes cannot show are left out. log_y: whether y is logarithmic too, to base 10. limits: of y; None =
    those of the points.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Points]
    log_y: bool = True
    limits: tuple[float, float] | None = None


def svg(panels: Sequence[Panel]) -> str:
    """Return a picture of all panels, two beside each other."""
    columns = min(_COLUMNS, len(panels))
    width, height = columns * _WIDTH, -(-len(panels) // columns) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, panel in enumerate(panels):
        x, y = place % columns * _WIDTH, place // columns * _HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_drawn(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(panel: Panel) -> list[str]:
    lines = {
        label: [
            (math.log2(x), math.log10(y) if panel.log_y else y)
            for x, y in points
            if math.isfinite(y) and (y > 0 or not panel.log_y)
        ]
        for label, points in panel.lines.items()
    }
    every = [point for points in lines.values() for point in points]
    if not every:
        return [_text(_WIDTH / 2, _HEIGHT / 2, f"{panel.title}: nothing finite", "middle")]
    low_x, high_x = _bounds([x for x, _ in every])
    if panel.limits is None:
        low_y, high_y = _bounds([y for _, y in every])
    else:
        low_y, high_y = (math.log10(limit) if panel.log_y else limit for limit in panel.limits)

    def at(x: float, y: float) -> tuple[float, float]:
        inside = min(max(y, low_y), high_y)
        return (
            _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (inside - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM),
        )

    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" fill="none" stroke="#888"/>',
        _text((_LEFT + right) / 2, 16, panel.title, "middle"),
        _text((_LEFT + right) / 2, _HEIGHT - 8, panel.x_label, "middle"),
        f'<g transform="translate(12 {(_TOP + bottom) / 2:g}) rotate(-90)">{_text(0, 0, panel.y_label, "middle")}</g>',
    ]
    for x in sorted({x for x, _ in every}):
        parts.append(_text(at(x, low_y)[0], bottom + 14, _power(x), "middle"))
    for y in (low_y, (low_y + high_y) / 2, high_y):
        parts.append(_text(_LEFT - 4, at(low_x, y)[1] + 3, f"{10**y if panel.log_y else y:.3g}", "end"))
    for number, (label, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        dash = ' stroke-dasharray="5 3"' if number >= len(_COLOURS) else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in (at(*p) for p in points)]
        parts.append(f'<g fill="{colour}">{_text(right + 6, _TOP + 10 + 14 * number, label, "start")}</g>')
    return parts


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds a little outside the values, and apart where they are all one."""
    low, high = min(values), max(values)
    margin = 0.04 * (high - low) or 0.5
    return low - margin, high + margin


def _power(exponent: float) -> str:
    value = 2.0**exponent
    return f"{value:.4g}" if value >= 1 else f"2^{exponent:.3g}"


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
