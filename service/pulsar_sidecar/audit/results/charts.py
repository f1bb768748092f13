"""Plots as SVG text: no library, no script, no resource from elsewhere.

Colours are CSS classes, so a page's light and dark themes are its own affair. Every plot has a title and a description
for those who do not see it, and every bar and point says its value as a tooltip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 640
_BAR_HEIGHT: Final = 18
_BAR_STEP: Final = 28
_LABEL_WIDTH: Final = 190
_VALUE_WIDTH: Final = 190
_LABEL_LETTERS: Final = 25
_COLUMNS_HEIGHT: Final = 220
_LINE_HEIGHT: Final = 220
_MARGIN: Final = 46


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its length, and what is written beside it."""

    label: str
    value: float
    said: str


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a line: what is written below it, its height, and what a pointer is told."""

    label: str
    value: float
    said: str


def bars(title: str, items: Sequence[Bar]) -> str:
    """Horizontal bars, one below the other."""
    height = _BAR_STEP * len(items) + 8
    most = max((item.value for item in items), default=0)
    room = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    drawn = []
    for index, item in enumerate(items):
        top = 4 + index * _BAR_STEP
        length = room * item.value / most if most else 0
        middle = top + _BAR_HEIGHT / 2 + 4
        drawn.append(
            f"<g><title>{escape(f'{item.label}: {item.said}')}</title>"
            f'<text class="label" x="{_LABEL_WIDTH - 8}" y="{middle:.1f}" text-anchor="end">'
            f"{escape(_short(item.label))}</text>"
            f'<rect class="bar" x="{_LABEL_WIDTH}" y="{top}" width="{max(length, 1.5):.1f}" '
            f'height="{_BAR_HEIGHT}" rx="2"/>'
            f'<text class="value" x="{_LABEL_WIDTH + max(length, 1.5) + 6:.1f}" y="{middle:.1f}">'
            f"{escape(item.said)}</text></g>"
        )
    return _svg(title, _described(items), height, "".join(drawn))


def columns(title: str, items: Sequence[Bar]) -> str:
    """Upright bars side by side, for a histogram."""
    most = max((item.value for item in items), default=0)
    step = (_WIDTH - 16) / max(len(items), 1)
    base = _COLUMNS_HEIGHT - 44
    drawn = [f'<line class="axis" x1="8" y1="{base}" x2="{_WIDTH - 8}" y2="{base}"/>']
    for index, item in enumerate(items):
        left = 8 + index * step
        height = (base - 24) * item.value / most if most else 0
        drawn.append(
            f"<g><title>{escape(f'{item.label}: {item.said}')}</title>"
            f'<rect class="bar" x="{left + step * 0.12:.1f}" y="{base - height:.1f}" width="{step * 0.76:.1f}" '
            f'height="{height:.1f}" rx="2"/>'
            f'<text class="value" x="{left + step / 2:.1f}" y="{base - height - 6:.1f}" text-anchor="middle">'
            f"{escape(_count(item.value))}</text>"
            f"{_two_lines(item.label, left + step / 2, base + 16)}</g>"
        )
    return _svg(title, _described(items), _COLUMNS_HEIGHT, "".join(drawn))


def line(title: str, points: Sequence[Point]) -> str:
    """One line over time, left to right; the points are apart alike."""
    most = max((point.value for point in points), default=0) or 1
    base, top = _LINE_HEIGHT - 30, 22
    step = (_WIDTH - 2 * _MARGIN) / max(len(points) - 1, 1)
    places = [
        (_MARGIN + index * step, base - (base - top) * point.value / most, point) for index, point in enumerate(points)
    ]
    path = " ".join(f"{'M' if not index else 'L'}{x:.1f},{y:.1f}" for index, (x, y, _) in enumerate(places))
    dots = "".join(
        f"<g><title>{escape(f'{point.label}: {point.said}')}</title>"
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>'
        for x, y, point in places
    )
    return _svg(
        title,
        _described(points),
        _LINE_HEIGHT,
        f'<line class="axis" x1="{_MARGIN}" y1="{base}" x2="{_WIDTH - _MARGIN}" y2="{base}"/>'
        f'<line class="grid" x1="{_MARGIN}" y1="{top}" x2="{_WIDTH - _MARGIN}" y2="{top}"/>'
        f'<text class="value" x="{_MARGIN}" y="{top - 8}">{escape(_highest(points))}</text>'
        f'<path class="line" d="{path}"/>{dots}{_ends(places, base)}',
    )


def _ends(places: Sequence[tuple[float, float, Point]], base: float) -> str:
    shown = places if len(places) < 2 else (places[0], places[-1])
    anchors = ("start", "end") if len(shown) == 2 else ("start",)
    return "".join(
        f'<text class="label" x="{x:.1f}" y="{base + 20}" text-anchor="{anchor}">{escape(point.label)}</text>'
        for anchor, (x, _, point) in zip(anchors, shown, strict=True)
    )


def _svg(title: str, description: str, height: float, content: str) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {_WIDTH} {height:g}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{content}</svg>"
    )


def _described(items: Sequence[Bar] | Sequence[Point]) -> str:
    return "; ".join(f"{item.label}: {item.said}" for item in items)


def _two_lines(label: str, x: float, y: float) -> str:
    words = label.split(" ")
    half = (len(words) + 1) // 2
    parts = [" ".join(words[:half]), " ".join(words[half:])]
    spans = "".join(
        f'<tspan x="{x:.1f}" dy="{13 if index else 0}">{escape(part)}</tspan>' for index, part in enumerate(parts)
    )
    return f'<text class="label small" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{spans}</text>'


def _highest(points: Sequence[Point]) -> str:
    return max(points, key=lambda point: point.value).said if points else ""


def _short(label: str) -> str:
    return label if len(label) <= _LABEL_LETTERS else f"{label[: _LABEL_LETTERS - 1]}…"


def _count(value: float) -> str:
    return f"{value:,.0f}"
