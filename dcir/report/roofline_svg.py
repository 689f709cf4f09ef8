"""Draws a roofline as one SVG without scripts or outside parts: a panel of kernels, and one for every parameter that was changed.

GB/s strip | GFLOP/s over FLOP/byte, under the roofs
 no work   | a disc for each kernel (its area is its share of the time), a diamond for the whole call
 the same axes, a panel for each parameter: arrows from value to value
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dcir.report.roofline_axes import Axis, Line, escaped, figure, level, slope
from dcir.report.roofline_paths import PARAMETERS, Path
from dcir.report.roofline_points import Point

if TYPE_CHECKING:
    from dcir.report.roofline import Roofline

_WIDTH, _PLOT, _TOP, _LINE = 1000, 430, 46, 16
_STRIP = (54.0, 132.0)
_LEFT, _RIGHT = 192.0, 972.0
_NAMED = 10
_RADIUS = 26.0  # of a kernel that takes all the time
_LEAST_RADIUS = 3.0
_FAMILIES = ("product", "convolution", "loops", "attention", "torch")

# Middle tones, readable on white and on black; of the palette by Okabe and Ito, which people with poor colour vision tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b065a0", "#8c7a00", "#56a0c8")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.small{font-size:10.5px}.title{font-size:15px;font-weight:600}"
    ".ground{fill:#fff}.frame{fill:none;stroke:#57606a}.grid{stroke:#d8dee4}.roof{stroke:#1f2328;stroke-width:1.5}"
    ".one{stroke-dasharray:5 4;stroke:#57606a}.halo{paint-order:stroke;stroke:#fff;stroke-width:3px}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}.frame{stroke:#8b949e}.grid{stroke:#2a3138}"
    ".roof{stroke:#e6edf3}.one{stroke:#9aa4ae}.halo{stroke:#0d1117}}"
)


def svg(roofline: Roofline) -> str:
    """The picture of a roofline.

    Everything that is named in a model or a file is text, escaped.
    """
    body, below = _kernels(roofline, 0.0)
    for parameter in PARAMETERS:
        paths = _drawn(roofline, parameter)
        if paths:
            panel, below = _trajectories(roofline, parameter, paths, below)
            body += panel
    title = escaped(f"Roofline of {roofline.model}, {roofline.mode}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {below:.0f}" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{_WIDTH}" height="{below:.0f}"/>',
            *body,
            "</svg>\n",
        ]
    )


def _drawn(roofline: Roofline, parameter: str) -> list[Path]:
    """The paths through the reference."""
    at = roofline.reference.setting
    return [p for p in roofline.paths if p.parameter == parameter and p.at == at]


def _axes(roofline: Roofline, spots: Sequence[tuple[float, float]], top: float) -> tuple[Axis, Axis]:
    """Axes that hold some points (FLOP per byte, GFLOP/s), all peaks, and where the roof of memory meets them."""
    peaks = [c for c in roofline.ceilings if c.unit == "GFLOP/s"]
    memories = [c for c in roofline.ceilings if c.unit == "GB/s"]
    ridges = [max(p.all for p in peaks) / c.all for c in memories]
    return (
        Axis.around([*(x for x, _ in spots), max(ridges)], _LEFT, _RIGHT),
        Axis.around(
            [*(y for _, y in spots), *(c.all for c in peaks), *(c.one for c in peaks)], top + _TOP + _PLOT, top + _TOP
        ),
    )


def _kernels(roofline: Roofline, top: float) -> tuple[list[str], float]:
    """The first panel, and where it ends."""
    run = roofline.reference
    spots = [(p.intensity, p.gflops) for p in (run.whole, *run.kernels) if p.intensity]
    ridge = max(c.all for c in roofline.ceilings if c.unit == "GFLOP/s") / roofline.ceilings[0].all
    x, y = _axes(roofline, [*spots, (ridge / 4, 0.0)], top)  # with a piece of every slope
    kind = "measured" if roofline.rates.measured else "assumed: dcir machine measures them"
    heading = f"{roofline.model}, {roofline.mode}: kernels at {run.setting}; ceilings {kind}"
    out = [*_frame(x, y, heading, top), *_roofs(roofline, x, y), *_strip(roofline, top)]
    named = {id(p): number for number, p in enumerate(run.kernels[:_NAMED], 1)}
    for p in reversed(run.with_work):  # small ones on top
        out.append(_disc(p, x.at(p.intensity or 0.0), y.at(p.gflops), named.get(id(p))))
    if run.whole.intensity:
        out.append(_diamond(run.whole, x.at(run.whole.intensity), y.at(run.whole.gflops)))
    row = top + _TOP + _PLOT + 56
    out.append(_text(_STRIP[0], row - 4, _families_text(run.kernels), "small"))
    for number, p in enumerate(run.kernels[:_NAMED], 1):
        row += _LINE
        out.append(_text(_STRIP[0], row, f"{number}  {_summary(p)}", "small"))
    for line in (f"◆  {_summary(run.whole)}", *roofline.notes):
        row += _LINE
        out.append(_text(_STRIP[0], row, line, "small"))
    return out, row + 24


def _trajectories(roofline: Roofline, parameter: str, paths: Sequence[Path], top: float) -> tuple[list[str], float]:
    """The panel of one parameter, and where it ends."""
    x, y = _axes(roofline, [(p.intensity, p.gflops) for path in paths for p in path.places], top)
    fixed = ", work as at the lowest level: above a roof is what does less arithmetic" if parameter == "level" else ""
    out = [*_frame(x, y, f"over {parameter}{fixed}", top), *_roofs(roofline, x, y)]
    row = top + _TOP + _PLOT + 50
    for number, path in enumerate(paths):
        colour = _COLOURS[number % len(_COLOURS)]
        name = chr(ord("a") + number)
        out += _path(path, name, colour, x, y)
        row += _LINE
        out.append(_text(_STRIP[0], row, f"{name}  {_cut(path.title, 150)}", "small", colour))
        row += _LINE
        out.append(_text(_STRIP[0] + 14, row, _cut(path.shows, 160), "small"))
    return out, row + 24


def _frame(x: Axis, y: Axis, heading: str, top: float) -> list[str]:
    out = [_text(_STRIP[0], top + 24, _cut(heading, 125), "title")]
    for at, word in x.ticks():
        out.append(f'<line class="grid" x1="{at:.1f}" y1="{y.start:.1f}" x2="{at:.1f}" y2="{y.end:.1f}"/>')
        out.append(_text(at, y.start + 16, word, "small", anchor="middle"))
    for at, word in y.ticks():
        out.append(f'<line class="grid" x1="{x.start:.1f}" y1="{at:.1f}" x2="{x.end:.1f}" y2="{at:.1f}"/>')
        out.append(_text(x.start - 6, at + 4, word, "small", anchor="end"))
    width, height = x.end - x.start, y.start - y.end
    out.append(f'<rect class="frame" x="{x.start}" y="{y.end:.1f}" width="{width}" height="{height}"/>')
    out.append(_text((x.start + x.end) / 2, y.start + 32, "operational intensity [FLOP/byte]", anchor="middle"))
    out.append(_turned(x.start - 42, (y.start + y.end) / 2, "performance [GFLOP/s]", -90))
    return out


def _roofs(roofline: Roofline, x: Axis, y: Axis) -> list[str]:
    memories = [c for c in roofline.ceilings if c.unit == "GB/s"]
    peaks = [c for c in roofline.ceilings if c.unit == "GFLOP/s"]
    teams = [("all", roofline.rates.threads), ("one", 1)] if roofline.rates.threads > 1 else [("all", 1)]
    lines, words = [], []
    for name, threads in teams:
        of_team = f", {threads} thread{'s' * (threads != 1)}"
        top, fastest = max(getattr(c, name) for c in peaks), max(getattr(c, name) for c in memories)
        for c in memories:
            line = slope(x, y, getattr(c, name), top)
            if line is not None:
                lines.append(_roof(line, name))
                at = line.along(24 if name == "all" else 210)
                text = f"{c.name} {figure(getattr(c, name))} GB/s{of_team}"
                words.append(_turned(at[0], at[1] - 4, text, line.degrees, "small halo", anchor="start"))
        for c in peaks:
            line = level(x, y, getattr(c, name), fastest)
            if line is not None:
                lines.append(_roof(line, name))
                # Half of two threads' peak is one thread's: types are named at an end each.
                at_x, anchor = (line.x2 - 6, "end") if c is peaks[0] else (line.x1 + 10, "start")
                text = f"{c.name} {figure(getattr(c, name))} GFLOP/s{of_team}"
                words.append(_text(at_x, line.y2 - 4, text, "small halo", anchor=anchor))
    return lines + words


def _strip(roofline: Roofline, top: float) -> list[str]:
    """Kernels without operations, which have no place on an axis of operations."""
    points = roofline.reference.without_work
    rates = [c for c in roofline.ceilings if c.unit == "GB/s"]
    y = Axis.around([*(p.gbytes for p in points), *(c.all for c in rates)], top + _TOP + _PLOT, top + _TOP)
    width = _STRIP[1] - _STRIP[0]
    out = [f'<rect class="frame" x="{_STRIP[0]}" y="{y.end:.1f}" width="{width}" height="{y.start - y.end}"/>']
    for at, word in y.ticks():
        out.append(_text(_STRIP[0] - 5, at + 4, word, "small", anchor="end"))
    for c in rates:
        at = y.at(c.all)
        out.append(f'<line class="roof" x1="{_STRIP[0]}" y1="{at:.1f}" x2="{_STRIP[1]}" y2="{at:.1f}"/>')
        out.append(_text(_STRIP[0] + 3, at - 3, f"{c.name} {figure(c.all)}", "small halo"))
    kernels = roofline.reference.kernels[:_NAMED]
    named = {id(p): number for number, p in enumerate(kernels, 1)}
    middle = (_STRIP[0] + _STRIP[1]) / 2
    out += [_disc(p, middle, y.at(p.gbytes), named.get(id(p))) for p in reversed(points)]
    out.append(_text(middle, y.start + 16, "no FLOP", "small", anchor="middle"))
    out.append(_text(middle, y.start + 32, "[GB/s]", anchor="middle"))
    return out


def _path(path: Path, name: str, colour: str, x: Axis, y: Axis) -> list[str]:
    """Arrows from value to value, with the values beside their points."""
    dots = [(x.at(p.intensity), y.at(p.gflops), p) for p in path.places]
    out = []
    for (x1, y1, _), (x2, y2, _) in itertools.pairwise(dots):
        out.append(
            f'<line class="step" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="2"/>'
        )
        out.append(_head(Line(x1, y1, x2, y2), colour))
    for number, (at_x, at_y, p) in enumerate(dots):
        tip = f"{path.title}; {path.parameter} {p.value}: {figure(p.ms)} ms, {figure(p.intensity)} FLOP/byte, {figure(p.gflops)} GFLOP/s"
        out.append(
            f'<circle class="place" cx="{at_x:.1f}" cy="{at_y:.1f}" r="4" fill="{colour}"><title>{escaped(tip)}</title></circle>'
        )
        word = f"-O{p.value}" if path.parameter == "level" else str(p.value)
        if number == len(dots) - 1:
            out.append(_text(at_x + 7, at_y + 4, f"{name}: {word}", "small halo", colour))
        else:
            out.append(_text(at_x - 7, at_y + 4, word, "small halo", colour, "end"))
    return out


def _head(line: Line, colour: str) -> str:
    """An arrow's head short of the point it leads to; nothing where there is no room."""
    length = math.hypot(line.x2 - line.x1, line.y2 - line.y1)
    if length < 12:
        return ""
    ux, uy = (line.x2 - line.x1) / length, (line.y2 - line.y1) / length
    tip = (line.x2 - 4 * ux, line.y2 - 4 * uy)
    back = (tip[0] - 9 * ux, tip[1] - 9 * uy)
    corners = [tip, (back[0] - 4 * uy, back[1] + 4 * ux), (back[0] + 4 * uy, back[1] - 4 * ux)]
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}" fill="{colour}"/>'


def _disc(p: Point, x: float, y: float, number: int | None) -> str:
    radius = max(_LEAST_RADIUS, _RADIUS * math.sqrt(min(1.0, p.share)))
    colour = _colour(p)
    disc = (
        f'<circle class="kernel" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.55" stroke="{colour}">'
        f"<title>{escaped(_summary(p))}</title></circle>"
    )
    return disc if number is None else disc + _text(x + radius + 2, y + 4, str(number), "small halo")


def _diamond(p: Point, x: float, y: float) -> str:
    corners = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in ((0, -9), (7, 0), (0, 9), (-7, 0)))
    return f'<polygon class="whole" points="{corners}" fill="#cf222e" stroke="#fff"><title>{escaped(_summary(p))}</title></polygon>'


def _roof(line: Line, name: str) -> str:
    kind = "roof" if name == "all" else "roof one"
    return f'<line class="{kind}" x1="{line.x1:.1f}" y1="{line.y1:.1f}" x2="{line.x2:.1f}" y2="{line.y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", colour: str = "", anchor: str = "start") -> str:
    of_class = f' class="{kind}"' if kind else ""
    # A style, since a rule for all texts goes before an attribute.
    painted = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of_class}{painted}>{escaped(text)}</text>'


def _turned(x: float, y: float, text: str, degrees: float, kind: str = "", anchor: str = "middle") -> str:
    of_class = f' class="{kind}"' if kind else ""
    turn = f"rotate({degrees:.1f} {x:.1f} {y:.1f})"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" transform="{turn}"{of_class}>{escaped(text)}</text>'


def _colour(p: Point) -> str:
    return _COLOURS[_FAMILIES.index(p.family)] if p.family in _FAMILIES else _COLOURS[-1]


def _families_text(points: Sequence[Point]) -> str:
    names = ("blue", "orange", "green", "purple", "olive", "light blue")
    known = [f"{names[i]} {family}" for i, family in enumerate(_FAMILIES) if any(p.family == family for p in points)]
    others = [f"{names[-1]} others"] if any(p.family not in _FAMILIES for p in points) else []
    return "; ".join(["area: share of the time", *known, *others])


def _summary(p: Point) -> str:
    place = f"  ({p.place})" if p.origins else ""
    work = f"{figure(p.intensity)} FLOP/byte, {figure(p.gflops)} GFLOP/s, " if p.intensity else ""
    words = f"{p.share:.1%}, {figure(p.ms)} ms, {work}{figure(p.gbytes)} GB/s, {p.bound.name} {p.bound.share:.0%}"
    return f"{words}: {_cut(p.what, 60)}{_cut(place, 60)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
