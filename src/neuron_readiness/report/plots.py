"""Plots as inline SVG, from plain numbers: no library, no script, sharp in print."""

from __future__ import annotations

from html import escape

_WIDTH, _ROW, _LABEL = 640, 22, 230


def bars(rows: list[tuple[str, float, str]], title: str) -> str:
    """Horizontal bars: (label, value, text at the bar's end). "" without rows."""
    rows = [r for r in rows if r[1] == r[1]]
    if not rows:
        return ""
    most = max(value for _, value, _ in rows) or 1.0
    height = _ROW * len(rows) + 4
    room = _WIDTH - _LABEL - 130
    parts = [_open(height, title)]
    for i, (label, value, text) in enumerate(rows):
        y = i * _ROW + 2
        width = max(1.0, room * value / most)
        parts.append(
            f'<text class="l" x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">'
            f"{escape(_cut(label))}</text>"
            f'<rect class="bar" x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="15"/>'
            f'<text x="{_LABEL + width + 6:.1f}" y="{y + 15}">{escape(text)}</text>'
        )
    return "".join([*parts, "</svg>"])


def curve(points: list[tuple[float, float]], title: str, x_name: str, y_name: str) -> str:
    """A stepped curve with its axes; y from 0 to 1. "" with fewer than two points."""
    if len(points) < 2:
        return ""
    width, height, left, bottom = 460, 200, 48, 36
    last = max(x for x, _ in points)
    plot_w, plot_h = width - left - 12, height - bottom - 10

    def place(x: float, y: float) -> str:
        return f"{left + plot_w * x / last:.1f},{10 + plot_h * (1 - y):.1f}"

    path = " ".join(place(x, y) for x, y in points)
    parts = [_open(height, title, width)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = 10 + plot_h * (1 - share)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{width - 12}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    parts.append(f'<polyline class="line" points="{path}"/>')
    for x, y in points if len(points) <= 60 else []:
        cx, cy = place(x, y).split(",")
        parts.append(f'<circle class="dot" cx="{cx}" cy="{cy}" r="3"/>')
    parts.append(
        f'<text x="{left}" y="{height - 6}">1</text>'
        f'<text x="{width - 12}" y="{height - 6}" text-anchor="end">{last:g}</text>'
        f'<text x="{left + plot_w / 2}" y="{height - 6}" text-anchor="middle">'
        f"{escape(x_name)}</text>"
        f"<title>{escape(y_name)}</title></svg>"
    )
    return "".join(parts)


def _open(height: int, title: str, width: int = _WIDTH) -> str:
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg">'
    )


def _cut(text: str, most: int = 34) -> str:
    return text if len(text) <= most else "…" + text[1 - most :]
