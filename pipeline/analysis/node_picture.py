"""A node as a picture: NUMA domains, cores, GPUs, NICs, and which rank sits where; for `himori probe` and for reports.

`node_svg` is the entrance for HTML: one self-contained `<svg>` element with its own background, so that it reads on any
page; its text is text. `node_png` is the same as pixels.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from pipeline.analysis.node_scene import Core, CoreState, Domain, Scene, Seat, rank_numbers, scene_of
from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.binding import Binding


class Theme(Enum):
    """Which background a picture is made for."""

    light = "light"
    dark = "dark"


@dataclass(frozen=True, slots=True)
class _Colours:
    page: str
    card: str
    edge: str
    ink: str
    faint: str
    idle: str
    """Fill of what is nobody's."""
    ranks: tuple[str, ...]
    """Fills; a rank's number stands on it in `ink`, so colour is never the only sign."""


_COLOURS: Mapping[Theme, _Colours] = {
    Theme.light: _Colours(
        page="#ffffff",
        card="#f6f7f9",
        edge="#b4bac4",
        ink="#1b1f26",
        faint="#5d6573",
        idle="#e3e6eb",
        ranks=("#9cc7ec", "#f8c07c", "#93d39a", "#f2a9a2", "#cdb2e6", "#e6d56c", "#8fd6d0", "#d3b894"),
    ),
    Theme.dark: _Colours(
        page="#14171c",
        card="#1e232b",
        edge="#4a5262",
        ink="#eceff4",
        faint="#a3acba",
        idle="#2d343f",
        ranks=("#2a6299", "#95601a", "#2f7a3c", "#9a403a", "#6d4a94", "#77690f", "#1f736d", "#74593a"),
    ),
}

# Inches.
_MARGIN = 0.25
_GAP = 0.2
_PAD = 0.14
_SEAT_WIDTH = 1.22
_SEAT_HEIGHT = 0.62
_NIC_HEIGHT = 0.42
_CORE = 0.22
_CARD_MIN_WIDTH = 3.4
_HEADER = 0.62
_CARD_HEAD = 0.52
_LINE = 0.19
_DPI = 150


def node_svg(snapshot: NodeSnapshot, bindings: Sequence[Binding], *, theme: Theme = Theme.light) -> str:
    """The picture as one SVG element, the same text for the same node."""
    text = _saved(snapshot, bindings, theme, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def node_png(snapshot: NodeSnapshot, bindings: Sequence[Binding], *, theme: Theme = Theme.light) -> bytes:
    """The picture as a PNG file."""
    return _saved(snapshot, bindings, theme, "png")


def _saved(snapshot: NodeSnapshot, bindings: Sequence[Binding], theme: Theme, kind: str) -> bytes:
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "himori", "font.family": ["DejaVu Sans", "sans-serif"]}
    with mpl.rc_context(settings):
        figure = _Drawing(scene_of(snapshot, bindings), rank_numbers(bindings), _COLOURS[theme]).figure()
        stream = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(stream, format=kind, dpi=_DPI, metadata=metadata, facecolor=figure.get_facecolor())
    return stream.getvalue()


class _Drawing:
    """One picture; lengths are inches, y grows downwards."""

    def __init__(self, scene: Scene, places: Mapping[int, int], colours: _Colours) -> None:
        self._scene = scene
        self._places = places
        self._colours = colours
        self._axes: Axes | None = None

    def figure(self) -> Figure:
        """Lays out and draws all of it."""
        widths = [max(map(_card_width, row)) * len(row) + _GAP * (len(row) - 1) for row in self._scene.rows]
        width = max((*widths, 2 * _CARD_MIN_WIDTH))
        heights = [max(_card_height(one, _shared_width(row, width)) for one in row) for row in self._scene.rows]
        footer = self._footer()
        height = _HEADER + sum(heights) + _GAP * len(heights) + _LINE * len(footer)
        figure = Figure(figsize=(width + 2 * _MARGIN, height + 2 * _MARGIN), facecolor=self._colours.page)
        axes = self._axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(-_MARGIN, width + _MARGIN)
        axes.set_ylim(height + _MARGIN, -_MARGIN)
        axes.set_axis_off()
        self._text(0, 0.14, self._scene.title, size=13, weight="bold")
        self._text(0, 0.41, self._scene.detail, size=8.5, faint=True)
        y = _HEADER
        for row, row_height in zip(self._scene.rows, heights, strict=True):
            self._row(row, y, width, row_height)
            y += row_height + _GAP
        for line in footer:
            self._text(0, y, line, size=8, faint=True)
            y += _LINE
        return figure

    def _row(self, row: Sequence[Domain], y: float, width: float, height: float) -> None:
        each = _shared_width(row, width)
        for place, domain in enumerate(row):
            self._card(domain, place * (each + _GAP), y, each, height)

    def _card(self, domain: Domain, x: float, y: float, width: float, height: float) -> None:
        self._box(x, y, width, height, fill=self._colours.card)
        self._text(x + _PAD, y + 0.17, domain.title, size=10, weight="bold")
        if domain.socket is not None:
            self._text(x + width - _PAD, y + 0.17, f"socket {domain.socket}", size=8, faint=True, align="right")
        self._text(x + _PAD, y + 0.37, _fitted(domain.detail, width - 2 * _PAD, 7.5), size=7.5, faint=True)
        below = y + _CARD_HEAD
        per_row = _cores_per_row(width, len(domain.cores))
        for place, core in enumerate(domain.cores):
            self._core(core, x + _PAD + place % per_row * _CORE, below + place // per_row * _CORE)
        below += -(-len(domain.cores) // per_row) * _CORE + (_PAD if domain.cores else 0)
        per_row = _seats_per_row(width)
        for start in range(0, len(domain.seats), per_row):
            seats = domain.seats[start : start + per_row]
            for place, seat in enumerate(seats):
                self._seat(seat, x + _PAD + place * _SEAT_WIDTH, below)
            below += _seats_height(seats)
        for line in _nic_lines(domain, width):
            self._text(x + _PAD, below + 0.06, line, size=7, faint=True)
            below += _LINE

    def _core(self, core: Core, x: float, y: float) -> None:
        side = _CORE - 0.03
        fill = self._colours.idle
        label = {CoreState.shared: "#", CoreState.forbidden: "×"}.get(core.state, "")
        if core.state is CoreState.given and core.rank is not None:
            fill, label = self._rank_colour(core.rank), str(core.rank)
        elif core.state is CoreState.forbidden:
            fill = "none"
        rectangle = Rectangle((x, y), side, side, facecolor=fill, edgecolor=self._colours.edge, linewidth=0.4)
        self._ax.add_patch(rectangle)
        if label:
            size = 6 if len(label) < 3 else 4.5
            self._text(x + side / 2, y + side / 2 + 0.005, label, size=size, align="center")

    def _seat(self, seat: Seat, x: float, y: float) -> None:
        width = _SEAT_WIDTH - 0.08
        fill = self._rank_colour(seat.ranks[0]) if seat.ranks else self._colours.idle
        self._box(x, y, width, _SEAT_HEIGHT - 0.06, fill=fill)
        middle = x + width / 2
        who = f"{'ranks' if len(seat.ranks) > 1 else 'rank'} {_listed(seat.ranks)}" if seat.ranks else "no rank"
        if len(seat.ranks) == 1 and seat.cores:
            who += f", {seat.cores} core{'s' if seat.cores > 1 else ''}"
        # Without a place two lines stand in the middle.
        shift = 0.0 if seat.place else 0.06
        self._text(middle, y + 0.13 + shift, seat.title, size=8, weight="bold", align="center")
        self._text(middle, y + 0.29, seat.place, size=6.5, align="center")
        self._text(middle, y + 0.44 - shift, who, size=7.5, align="center")
        top = y + _SEAT_HEIGHT
        for nic in seat.nics:
            self._ax.plot([middle, middle], [top - 0.06, top], color=self._colours.edge, linewidth=1.2)
            self._box(x, top, width, _NIC_HEIGHT - 0.06, fill=self._colours.page)
            self._text(middle, top + 0.11, _fitted(nic.name, width, 7), size=7, align="center")
            about = " ".join(filter(None, (nic.distance, nic.link)))
            self._text(middle, top + 0.26, about, size=5.8 if len(about) < 19 else 5, faint=True, align="center")
            top += _NIC_HEIGHT

    def _footer(self) -> list[str]:
        states = {core.state for row in self._scene.rows for domain in row for core in domain.cores}
        words = {
            CoreState.given: "a square is a core, its number the rank it was given to",
            CoreState.spare: "plain: spare",
            CoreState.shared: "#: shared by ranks",
            CoreState.forbidden: "×: not this job's",
        }
        legend = "; ".join(text for state, text in words.items() if state in states)
        return [*([legend] if legend else []), *self._scene.notes]

    # ----------------------------------------------------------------- strokes

    @property
    def _ax(self) -> Axes:
        assert self._axes is not None
        return self._axes

    def _rank_colour(self, rank: int) -> str:
        return self._colours.ranks[self._places[rank] % len(self._colours.ranks)]

    def _box(self, x: float, y: float, width: float, height: float, *, fill: str) -> None:
        shape = "round,pad=0,rounding_size=0.05"
        self._ax.add_patch(
            FancyBboxPatch(
                (x, y), width, height, boxstyle=shape, facecolor=fill, edgecolor=self._colours.edge, linewidth=0.8
            )
        )

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float,
        weight: str = "normal",
        faint: bool = False,
        align: str = "left",
    ) -> None:
        colour = self._colours.faint if faint else self._colours.ink
        self._ax.text(x, y, text, fontsize=size, fontweight=weight, color=colour, ha=align, va="center")


# --------------------------------------------------------------------------- sizes


def _card_width(domain: Domain) -> float:
    """Up to eight seats, or as many as make a square of the cores, side by side."""
    seats = min(len(domain.seats), 4 if len(domain.seats) <= 4 or len(domain.cores) <= 32 else 8)
    return max(_CARD_MIN_WIDTH, 2 * _PAD + seats * _SEAT_WIDTH)


def _shared_width(row: Sequence[Domain], width: float) -> float:
    """Of each card of a row that fills the picture."""
    return (width - _GAP * (len(row) - 1)) / len(row)


def _cores_per_row(width: float, count: int) -> int:
    """As many as divide them evenly, where that isn't much less than there is room for; else a multiple of four."""
    room = max(4, int((width - 2 * _PAD) / _CORE))
    even = [per_row for per_row in range(room // 2, room + 1) if count % per_row == 0]
    return even[-1] if even else room // 4 * 4


def _seats_per_row(width: float) -> int:
    return max(1, int((width - 2 * _PAD + 0.001) / _SEAT_WIDTH))


def _seats_height(seats: Sequence[Seat]) -> float:
    return _SEAT_HEIGHT + max((len(seat.nics) for seat in seats), default=0) * _NIC_HEIGHT + 0.06


def _card_height(domain: Domain, width: float) -> float:
    cores = -(-len(domain.cores) // _cores_per_row(width, len(domain.cores))) * _CORE + (_PAD if domain.cores else 0)
    per_row = _seats_per_row(width)
    seats = sum(_seats_height(domain.seats[i : i + per_row]) for i in range(0, len(domain.seats), per_row))
    return _CARD_HEAD + cores + seats + len(_nic_lines(domain, width)) * _LINE + _PAD / 2


_EM = 0.0087
"""Width of an average letter of size 1, inches."""


def _nic_lines(domain: Domain, width: float) -> list[str]:
    """NICs that nobody was given, folded."""
    if not domain.other_nics:
        return []
    limit = int((width - 2 * _PAD) / (7 * _EM))
    lines = ["other NICs:"]
    for name in domain.other_nics:
        if len(lines[-1]) + len(name) + 1 > limit:
            lines.append(name)
        else:
            lines[-1] += f" {name}"
    return lines


def _fitted(text: str, width: float, size: float) -> str:
    limit = int(width / (size * _EM))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:3]))
    return shown + (", …" if len(ranks) > 3 else "")
