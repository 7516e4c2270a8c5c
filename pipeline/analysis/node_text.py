"""A node as a text picture for terminals: a panel a NUMA domain, a letter a core; readable without colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from pipeline.analysis.node_scene import Core, CoreState, Domain, Scene, Seat, rank_numbers, scene_of
from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.binding import Binding

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MARKS = {CoreState.shared: "#", CoreState.spare: "·", CoreState.forbidden: "x"}
_WORDS = {
    CoreState.shared: "# shared by ranks",
    CoreState.spare: "· spare",
    CoreState.forbidden: "x not this job's",
}


def node_panels(snapshot: NodeSnapshot, bindings: Sequence[Binding]) -> RenderableType:
    """The picture, to be printed by rich."""
    scene, places = scene_of(snapshot, bindings), rank_numbers(bindings)
    return Group(
        Text(scene.title, style="bold"),
        Text(scene.detail),
        *(_panel(domain, places) for row in scene.rows for domain in row),
        *(Text(line, style="dim") for line in _footer(scene)),
    )


def _panel(domain: Domain, places: Mapping[int, int]) -> RenderableType:
    lines = [_cores(domain.cores, places)] if domain.cores else []
    lines += [line for seat in domain.seats for line in _seat(seat, places)]
    if domain.other_nics:
        lines.append(Text(f"other NICs  {' '.join(domain.other_nics)}", style="dim"))
    title = f"{domain.title}: {domain.detail}" if domain.detail else domain.title
    return Panel(Group(*lines), title=Text(title), title_align="left")


def _cores(cores: Sequence[Core], places: Mapping[int, int]) -> Text:
    text = Text("cores  ")
    for core in cores:
        if core.state is CoreState.given and core.rank is not None:
            text.append(_DIGITS[places[core.rank] % len(_DIGITS)], style=_style(core.rank, places, reverse=True))
        else:
            text.append(_MARKS.get(core.state, "?"), style="dim")
    return text


def _seat(seat: Seat, places: Mapping[int, int]) -> list[Text]:
    nics = "   ".join(" ".join(filter(None, (nic.name, f"({nic.distance})", nic.link))) for nic in seat.nics)
    where = f"{seat.title:<7}{seat.place}  " if seat.place else f"{seat.title}  "
    if not seat.ranks:
        return [Text(f"{where}no rank  {nics}", style="dim")]
    lines = []
    for rank, cpus in zip(seat.ranks, seat.cpus, strict=True):
        line = Text(where)
        line.append(f" rank {rank} ", style=_style(rank, places, reverse=True))
        line.append(f"  CPUs {cpus}" + (f"   NIC {nics}" if nics else ""))
        lines.append(line)
    return lines


def _style(rank: int, places: Mapping[int, int], *, reverse: bool) -> str:
    colour = _COLOURS[places[rank] % len(_COLOURS)]
    return f"{colour} reverse" if reverse else colour


def _footer(scene: Scene) -> list[str]:
    states = {core.state for row in scene.rows for domain in row for core in domain.cores}
    legend = [words for state, words in _WORDS.items() if state in states]
    if CoreState.given in states:
        legend.insert(0, "a digit or letter is a core of that local rank (a=10)")
    return [*scene.notes, *(["; ".join(legend)] if legend else [])]
