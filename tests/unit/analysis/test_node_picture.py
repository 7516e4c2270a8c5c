"""Every recorded node is drawn: all cores, GPUs, NICs and ranks are there, once, and nothing sticks out."""

from __future__ import annotations

import io
import re
from collections import Counter
from xml.etree import ElementTree

import matplotlib.image as mpimg
import pytest
from hypothesis import given, settings
from rich.console import Console
from unit.placement.machines import snapshots
from unit.placement.recorded import NODES, expected_ranks, local_ranks, snapshot_of

from pipeline.analysis.node_picture import Theme, node_png, node_svg
from pipeline.analysis.node_scene import CoreState, Scene, scene_of
from pipeline.analysis.node_text import node_panels
from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.binding import Binding, bind

SVG = "{http://www.w3.org/2000/svg}"


def bound(name: str) -> tuple[NodeSnapshot, tuple[Binding, ...]]:
    snapshot = snapshot_of(name)
    return snapshot, bind(snapshot, local_ranks(len(expected_ranks(name))))


def check_scene(snapshot: NodeSnapshot, bindings: tuple[Binding, ...]) -> Scene:
    """Each thing of the node is in the scene once, and every rank on its cores."""
    scene = scene_of(snapshot, bindings)
    domains = [domain for row in scene.rows for domain in row]
    cores = [core for domain in domains for core in domain.cores]
    assert Counter(core.cpus for core in cores) == Counter(snapshot.cores)
    seats = [seat for domain in domains for seat in domain.seats]
    assert sum(seat.title != "no GPU" for seat in seats) == len(snapshot.gpus)
    assert Counter(rank for seat in seats for rank in seat.ranks) == Counter(one.rank for one in bindings)
    shown = {nic.name for seat in seats for nic in seat.nics} | {nic for domain in domains for nic in domain.other_nics}
    stray = {nic for note in scene.notes if note.startswith("other NICs") for nic in note.split()}
    assert {nic.name for nic in snapshot.nics} <= shown | stray
    for core in cores:
        users = {one.rank for one in bindings if set(one.cpus) & set(core.cpus)}
        expected = CoreState.shared if len(users) > 1 else CoreState.given if users else None
        assert core.state is expected or (expected is None and core.state in (CoreState.spare, CoreState.forbidden))
        assert core.rank is None or core.rank in users
    return scene


@pytest.mark.parametrize("name", NODES)
def test_recorded_node_as_svg_and_text(name: str) -> None:
    snapshot, bindings = bound(name)
    scene = check_scene(snapshot, bindings)
    text = node_svg(snapshot, bindings)
    root = ElementTree.fromstring(text)
    words = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    assert scene.title in words
    for binding in bindings:
        assert any(re.fullmatch(rf"ranks? (\d+, )*{binding.rank}\b.*", word) for word in words)
        assert not binding.nics or any(word == binding.nics[0] for word in words)
    width, height = map(float, (root.get("viewBox") or "").split()[2:])
    for x, y in ((float(x), float(y)) for x, y in re.findall(r"translate\(([\d.-]+) ([\d.-]+)\)", text)):
        assert 0 <= x <= width
        assert 0 <= y <= height
    terminal = Console(width=100, file=io.StringIO(), record=True)
    terminal.print(node_panels(snapshot, bindings))
    printed = terminal.export_text()
    assert all(f"rank {binding.rank} " in printed for binding in bindings)
    assert all(len(line) <= 100 for line in printed.splitlines())


@settings(max_examples=50, deadline=None)
@given(snapshots())
def test_any_node_has_all_its_parts(snapshot: NodeSnapshot) -> None:
    check_scene(snapshot, bind(snapshot, local_ranks(max(1, len(snapshot.gpus)))))
    check_scene(snapshot, ())


def test_domains_of_a_socket_stand_in_a_row() -> None:
    rows = {
        name: [len(row) for row in scene_of(*bound(name)).rows] for name in ("b200x8-6numa", "b200x8-3numa", "laptop")
    }
    assert rows == {"b200x8-6numa": [3, 3], "b200x8-3numa": [3], "laptop": [1]}


def test_the_same_node_is_the_same_text_and_the_themes_differ() -> None:
    snapshot, bindings = bound("b200x8-3numa")
    light, dark = (node_svg(snapshot, bindings, theme=theme) for theme in Theme)
    assert node_svg(snapshot, bindings) == light
    assert light.startswith("<svg")
    assert light != dark


@pytest.mark.parametrize(("theme", "is_bright"), [(Theme.light, True), (Theme.dark, False)])
def test_a_png_has_the_background_of_its_theme(theme: Theme, is_bright: bool) -> None:
    picture = mpimg.imread(io.BytesIO(node_png(*bound("laptop"), theme=theme)))
    corner = picture[0, 0, :3].mean()
    assert (corner > 0.9) == is_bright
    assert (corner < 0.2) != is_bright
    assert picture.std() > 0.02


def test_a_rank_tells_itself_without_colours() -> None:
    terminal = Console(width=100, file=io.StringIO(), color_system=None)
    terminal.print(node_panels(*bound("b200x8-3numa")))
    printed = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "cores  000000001111111122222222" in printed
    assert "cores  666666666666777777777777" in printed
