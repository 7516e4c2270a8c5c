"""Overrides of several values in, the typed points of a sweep out, in Hydra's own multirun grammar.

Hydra composes once for each distinct choice of groups; what only sets values is then applied to that configuration
by Hydra's own function, in the order of the command line, so a point equals what composing it alone would give.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline.conditions import holds
from pipeline.conf_groups import groups, options
from pipeline.config import (
    SWEEP_KEYS,
    check_override,
    chosen_options,
    compose_root,
    experiment_of,
    key_of,
    named_groups,
    one_line,
    parse,
    search_folders,
    to_typed,
    with_prefix,
)
from pipeline.errors import ConfigError
from pipeline.types import DroppedPoint, Experiment, Point, Root, SweeperKind, SweeperSpec, SweepSpec

MAX_POINTS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSweep:
    """A sweep as composed."""

    name: str
    keys: tuple[str, ...]
    """The keys that vary, in the order of the command line, the experiment's own first."""
    points: tuple[Point, ...]
    dropped: tuple[DroppedPoint, ...]
    """Points that a condition excludes."""
    named_groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Keys that advance together."""

    keys: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    """For each position, the value of each key as Hydra would write it."""


def load_sweep(overrides: Sequence[str], *, conf_dir: Path | None = None) -> LoadedSweep:
    """Composes every point of a sweep and checks each value against its type.

    Raises ConfigError with one line that names the key, what it got and what there is.
    """
    folders = search_folders(conf_dir)
    typed = parse(overrides)
    root = _base(typed, folders, conf_dir)
    if root.sweeper.kind is not SweeperKind.grid:
        raise ConfigError(f"sweeper={root.sweeper.name}: chooses its points as it goes, there is no table of them yet")
    ordered = [*_own_lines(root.sweep, typed), *_of_a_run(typed)]
    axes = _zipped(_axes(ordered, folders), root.sweep.zip)
    if not axes:
        raise ConfigError("-m: no override names several values; give one, e.g. seed=1,2 or 'seed=range(8)'")
    composer = _Composer(ordered, folders, conf_dir)
    points: list[Point] = []
    dropped: list[DroppedPoint] = []
    for number, choices in enumerate(_choices(axes), 1):
        experiment = composer.experiment(choices)
        point = Point(
            number=number,
            choices=choices,
            experiment=experiment,
            published=tuple(one for one in root.sweep.published if all(holds(text, experiment) for text in one.where)),
        )
        reason = next((f"where {text}" for text in root.sweep.where if not holds(text, experiment)), None)
        if reason is None:
            points.append(point)
        else:
            dropped.append(DroppedPoint(number=number, choices=choices, reason=reason))
    return LoadedSweep(
        name=points[0].experiment.name if points else root.name,
        keys=tuple(key for axis in axes for key in axis.keys),
        points=tuple(points),
        dropped=tuple(dropped),
        named_groups=named_groups([item for item in ordered if not item.is_sweep_override()], folders)
        | frozenset(key_of(item) for item in ordered if key_of(item) in groups(folders)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """What a search may give one key: a number between two, or one of some values as they would be typed."""

    key: str
    low: float = 0.0
    high: float = 0.0
    step: int | None = None
    """A whole number, a multiple of this above `low`; None: any number."""
    log: bool = False
    values: tuple[str, ...] = ()
    """Empty for a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSearch:
    """A search as composed."""

    name: str
    sweeper: SweeperSpec
    dimensions: tuple[Dimension, ...]
    fixed: tuple[str, ...]
    """The overrides that all trials share."""
    named_groups: frozenset[str]


def load_search(overrides: Sequence[str], *, conf_dir: Path | None = None) -> LoadedSearch | None:
    """What is searched when `sweeper` says so; None for an ordinary sweep. Raises ConfigError."""
    folders = search_folders(conf_dir)
    typed = parse(overrides)
    root = _base(typed, folders, conf_dir)
    if root.sweeper.kind is SweeperKind.grid:
        return None
    if root.sweep.zip or root.sweep.where:
        raise ConfigError("sweep: zip and where shape a grid; a search takes its own way, give sweeper=grid for them")
    ordered = [*_own_lines(root.sweep, typed), *_of_a_run(typed)]
    for override in ordered:
        if not (override.is_sweep_override() and key_of(override) in groups(folders)):
            check_override(_one_value(override), folders, chosen_options([], folders))
    varied = [override for override in ordered if override.is_sweep_override()]
    if not varied:
        raise ConfigError("sweeper: nothing varies; give e.g. 'optimizer.lr=tag(log,interval(1e-4,1e-2))'")
    fixed = [override for override in ordered if not override.is_sweep_override()]
    return LoadedSearch(
        name=root.name,
        sweeper=root.sweeper,
        dimensions=tuple(_dimension(override, folders) for override in varied),
        fixed=tuple(with_prefix(override) for override in fixed),
        named_groups=named_groups(fixed, folders),
    )


def _one_value(override: Override) -> Override:
    """An override with a value of its own, to check the key by; options of groups are checked trial by trial."""
    return parse([f"{override.get_key_element()}=null"])[0] if override.is_sweep_override() else override


def _dimension(override: Override, folders: Sequence[Path]) -> Dimension:
    key = key_of(override)
    value: object = override.value()
    match value:
        case IntervalSweep():
            low, high = value.start or 0, value.end or 0
            whole = isinstance(low, int) and isinstance(high, int)
            return Dimension(key=key, low=low, high=high, step=1 if whole else None, log="log" in value.tags)
        case RangeSweep(start=int() as first, stop=int() as stop, step=int() as step):
            last = first + (stop - 1 - first) // step * step
            return Dimension(key=key, low=first, high=last, step=step)
        case _:
            return Dimension(key=key, values=tuple(_values(override, folders)))


# --------------------------------------------------------------------------- what varies


def _base(typed: Sequence[Override], folders: Sequence[Path], conf_dir: Path | None) -> Root:
    """The configuration without what varies: it says what the experiment itself wants varied."""
    fixed = [override for override in typed if not override.is_sweep_override()]
    for override in fixed:
        check_override(override, folders, chosen_options(fixed, folders))
    # Values that only some points can have must not end the whole: only what carries the sweep is composed here.
    carrying = [item for item in fixed if key_of(item) in {*groups(folders), "name"} or _is_of_sweep(item)]
    return to_typed(compose_root([with_prefix(override) for override in carrying], conf_dir))


def _is_of_sweep(override: Override) -> bool:
    return key_of(override).split(".")[0] in SWEEP_KEYS


def _of_a_run(typed: Sequence[Override]) -> list[Override]:
    return [override for override in typed if not _is_of_sweep(override)]


def _own_lines(spec: SweepSpec, typed: Sequence[Override]) -> list[Override]:
    """The experiment's own lines, but for keys that were typed."""
    taken = {key_of(override) for override in typed}
    own = parse(spec.over)
    for override in own:
        if not override.is_sweep_override():
            raise ConfigError(f"sweep.over: {override.input_line!r} names one value; it belongs into the experiment")
    return [override for override in own if key_of(override) not in taken]


def _axes(ordered: Sequence[Override], folders: Sequence[Path]) -> list[_Axis]:
    found: dict[str, _Axis] = {}
    for override in ordered:
        key = key_of(override)
        if not override.is_sweep_override():
            found.pop(key, None)  # typed later: it fixes what varied
            continue
        values = tuple((value,) for value in _values(override, folders))
        if not values:
            raise ConfigError(f"{override.input_line!r} names no value")
        found[key] = _Axis((key,), values)
    return list(found.values())


def _values(override: Override, folders: Sequence[Path]) -> Iterator[str]:
    key = key_of(override)
    if not override.is_discrete_sweep():
        raise ConfigError(f"{key}: {override.input_line!r} is a range to search in: give sweeper=optuna or values")
    value: object = override.value()
    if isinstance(value, Glob):
        if key not in groups(folders):
            raise ConfigError(f"{key}: glob(…) chooses options of a config group; {key} is a value")
        names: list[str] = value.filter(options(key, folders))
        yield from names
    else:
        yield from override.sweep_string_iterator()


def _zipped(axes: Sequence[_Axis], zips: Sequence[Sequence[str]]) -> list[_Axis]:
    """Axes whose keys are named together become one; it stands where its first key stood."""
    by_key = {axis.keys[0]: axis for axis in axes}
    first_of: dict[str, Sequence[str]] = {}
    for names in zips:
        unknown = [name for name in names if name not in by_key]
        if unknown:
            raise ConfigError(f"sweep.zip: {unknown[0]} does not vary; these do: {', '.join(by_key) or 'none'}")
        lengths = {name: len(by_key[name].values) for name in names}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise ConfigError(f"sweep.zip: keys that advance together need as many values each; {said}")
        in_order = [key for key in by_key if key in names]
        if set(in_order) & {name for group in first_of.values() for name in group}:
            raise ConfigError(f"sweep.zip: {in_order[0]} stands in two groups")
        first_of[in_order[0]] = in_order
    inner = {name for names in first_of.values() for name in names[1:]}
    return [_joined([by_key[name] for name in first_of.get(key, [key])]) for key in by_key if key not in inner]


def _joined(axes: Sequence[_Axis]) -> _Axis:
    rows = zip(*(axis.values for axis in axes), strict=True)
    return _Axis(
        tuple(key for axis in axes for key in axis.keys), tuple(tuple(itertools.chain(*values)) for values in rows)
    )


def _choices(axes: Sequence[_Axis]) -> Iterator[dict[str, str]]:
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_POINTS:
        raise ConfigError(f"-m: {count:,} points; more than {MAX_POINTS:,} are not made, vary less at once")
    for combination in itertools.product(*(axis.values for axis in axes)):
        yield {
            key: value
            for axis, values in zip(axes, combination, strict=True)
            for key, value in zip(axis.keys, values, strict=True)
        }


# --------------------------------------------------------------------------- composing


class _Composer:
    """Configurations of points; a choice of groups is composed once."""

    def __init__(self, ordered: Sequence[Override], folders: Sequence[Path], conf_dir: Path | None) -> None:
        self._ordered = ordered
        self._folders = folders
        self._groups = set(groups(folders))
        self._conf_dir = conf_dir
        self._bases: dict[tuple[str, ...], DictConfig] = {}
        self._overrides: dict[str, Override] = {}
        self._swept = {key_of(override) for override in ordered if override.is_sweep_override()}
        self._chosen = chosen_options([item for item in ordered if not item.is_sweep_override()], folders)

    def experiment(self, choices: Mapping[str, str]) -> Experiment:
        """The experiment of a point; raises ConfigError."""
        overrides = list(self._with_values(choices))
        of_groups = [item for item in overrides if key_of(item) in self._groups or key_of(item).startswith("hydra")]
        of_values = [item for item in overrides if item not in of_groups]
        config = self._base(of_groups)
        if not all(_can_be_repeated(override) for override in of_values):
            config = copy.deepcopy(config)
        try:
            ConfigLoaderImpl._apply_overrides_to_config(of_values, config)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(one_line(error)) from error
        return experiment_of(to_typed(config))

    def _with_values(self, choices: Mapping[str, str]) -> Iterator[Override]:
        last = {key_of(override): index for index, override in enumerate(self._ordered)}
        for index, override in enumerate(self._ordered):
            key = key_of(override)
            if not override.is_sweep_override():
                yield self._checked(str(override.input_line))
            elif index == last[key] and key in choices:
                yield self._checked(f"{str(override.input_line).partition('=')[0]}={choices[key]}")

    def _checked(self, text: str) -> Override:
        """An override of one value, checked the first time it is seen."""
        if text not in self._overrides:
            (parsed,) = parse([text])
            check_override(parsed, self._folders, self._chosen)
            prefixed = with_prefix(parsed)
            self._overrides[text] = parsed if prefixed == text else parse([prefixed])[0]
        return self._overrides[text]

    def _base(self, of_groups: Sequence[Override]) -> DictConfig:
        texts = tuple(str(override.input_line) for override in of_groups)
        if texts not in self._bases:
            config = compose_root(texts, self._conf_dir)
            if self._swept & {"experiment"} and config.sweep.over:
                raise ConfigError(
                    f"experiment={config.name}: carries a sweep of its own; give one experiment at a time"
                )
            self._bases[texts] = config
        return self._bases[texts]


def _can_be_repeated(override: Override) -> bool:
    """Whether applying it again with another value leaves nothing of the first: not so for what merges or deletes."""
    return not (override.is_delete() or override.is_add() or isinstance(override.value(), dict))
