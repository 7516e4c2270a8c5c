"""Overrides in, a typed Experiment out: with `pipeline.sweep_config` the one importer of Hydra and OmegaConf.

Hydra composes, it never launches. After `load` nobody sees a DictConfig.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.conf_groups import groups, options, shipped_conf_dir
from pipeline.errors import ConfigError
from pipeline.types import Experiment, Root

SWEEP_KEYS = frozenset({"sweep", "sweeper"})
"""Keys of the root that say which points a sweep has; a single run has no use for them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """What `load` found."""

    experiment: Experiment
    named_groups: frozenset[str]
    """Groups whose option was chosen by an override or by the experiment, not by default."""


def load(overrides: Sequence[str], *, conf_dir: Path | None = None) -> Loaded:
    """Composes `overrides` over the shipped configuration and checks every value against its type.

    `conf_dir` is a further folder of groups, searched before the shipped one.
    Raises ConfigError with one line that names the key, what it got and what there is.
    """
    folders = search_folders(conf_dir)
    parsed = parse(overrides)
    for override in parsed:
        if key_of(override).split(".")[0] in SWEEP_KEYS:
            raise ConfigError(f"{key_of(override)}: belongs to a sweep; give -m too")
        check_override(override, folders, chosen_options(parsed, folders))
    root = to_typed(compose_root([with_prefix(override) for override in parsed], conf_dir))
    return Loaded(experiment=experiment_of(root), named_groups=named_groups(parsed, folders))


def search_folders(conf_dir: Path | None) -> list[Path]:
    """The folders of config groups, searched in this order; raises ConfigError when `conf_dir` is none."""
    if conf_dir and not conf_dir.is_dir():
        raise ConfigError(f"--conf-dir: {conf_dir} is not a folder; name one that holds groups such as hardware/")
    return [*([conf_dir.resolve()] if conf_dir else []), shipped_conf_dir()]


def experiment_of(root: Root) -> Experiment:
    """The experiment without what only a sweep reads."""
    if not root.name.strip():
        raise ConfigError("name: is empty; a run is found by it, give name=WORD")
    return Experiment(**{field.name: getattr(root, field.name) for field in dataclasses.fields(Experiment)})


# --------------------------------------------------------------------------- checking what was typed


def parse(overrides: Sequence[str]) -> list[Override]:
    """Overrides as Hydra reads them; raises ConfigError naming the one that can't be."""
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            parsed.extend(parser.parse_overrides([text]))
        except HydraException as error:
            key = text.partition("=")[0]
            raise ConfigError(
                f"override {text!r} can't be read; the form is key=value, and a value with special characters "
                f"is quoted inside the shell's quotes: '{key}=\"…\"'"
            ) from error
    return parsed


def key_of(override: Override) -> str:
    """The group or dotted key that an override sets."""
    return str(override.get_key_element()).lstrip("+~").split("@")[0]


def check_override(override: Override, folders: Sequence[Path], chosen: Mapping[str, str]) -> None:
    """Raises ConfigError for a key or an option there isn't; `chosen` says in which file the key would stand."""
    key = key_of(override)
    if override.is_sweep_override():
        raise ConfigError(
            f"{key}: {override.input_line!r} names several values, a sweep; give -m for all of them, give one, "
            f"or quote it as '{key}=\"…\"'"
        )
    if key.startswith("hydra.") or key == "hydra":
        return
    if key in groups(folders):
        _check_option(key, override.value(), folders)
    else:
        _check_key(key, folders, chosen)


def _check_option(group: str, value: object, folders: Sequence[Path]) -> None:
    there = options(group, folders)
    if value is None and group == "experiment":
        return
    if not isinstance(value, str) or value not in there:
        raise ConfigError(
            f"{group}={value}: no such option{_near(str(value), there)}; conf/{group} has: {', '.join(there)}"
        )


def _check_key(key: str, folders: Sequence[Path], chosen: Mapping[str, str]) -> None:
    kind: object = Root
    walked: list[str] = []
    for part in key.split("."):
        fields = _fields(kind)
        if fields is None:  # a free-form mapping: any key goes
            return
        if part not in fields:
            names = sorted(fields) + ([] if walked else [name for name in groups(folders) if name not in fields])
            where = _where(walked, chosen)
            raise ConfigError(f"{key}: no such key in {where}{_near(part, names)}; keys there: {', '.join(names)}")
        kind = fields[part]
        walked.append(part)


def _where(walked: Sequence[str], chosen: Mapping[str, str]) -> str:
    """The file a key would stand in."""
    if not walked or walked[0] not in chosen:
        return "conf/config.yaml"
    return f"conf/{walked[0]}/{chosen[walked[0]]}.yaml"


def chosen_options(parsed: Sequence[Override], folders: Sequence[Path]) -> dict[str, str]:
    """The option of each group: from an override, else from the experiment, else the default."""
    root = yaml.safe_load((shipped_conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    chosen = dict(_entries(root))
    typed = {key_of(override): str(override.value()) for override in parsed if not override.is_sweep_override()}
    if typed.get("experiment") in options("experiment", folders):
        chosen |= dict(_experiment_choices(typed["experiment"], folders))
    return chosen | {key: value for key, value in typed.items() if key in groups(folders)}


def with_prefix(override: Override) -> str:
    """The override as typed, with Hydra's `++` where it adds to a free-form mapping such as cluster.sbatch."""
    text = str(override.input_line)
    kind: object = Root
    for part in key_of(override).split("."):
        fields = _fields(kind) or {}
        kind = fields.get(part)
        if typing.get_origin(kind) is dict:
            return text if text.startswith(("+", "~")) else f"++{text}"
    return text


def _fields(kind: object) -> dict[str, object] | None:
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return None
    return dict(typing.get_type_hints(kind))


def _near(got: str, there: Sequence[str]) -> str:
    close = difflib.get_close_matches(got, there, n=1)
    return f", did you mean {close[0]}?" if close else ""


# --------------------------------------------------------------------------- composing


def compose_root(overrides: Sequence[str], conf_dir: Path | None) -> DictConfig:
    """The whole configuration as Hydra composes it; raises ConfigError."""
    ConfigStore.instance().store(name="schema", node=Root)
    search = [f"hydra.searchpath=[file://{conf_dir.resolve()}]"] if conf_dir else []
    try:
        with initialize_config_dir(str(shipped_conf_dir()), version_base="1.3", job_name="himori"):
            return compose("config", overrides=[*search, *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_line(error)) from error


def to_typed(config: DictConfig) -> Root:
    """The typed form of a composed configuration; a mandatory value nobody gave is named."""
    try:
        root = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        missing = sorted(OmegaConf.missing_keys(config))  # slower than the rest: only looked for when there is one
        if missing:
            raise ConfigError(f"{missing[0]}: has no value; give one with {missing[0]}=…") from error
        raise ConfigError(one_line(error)) from error
    if not isinstance(root, Root):
        raise ConfigError("the composed configuration is not an Experiment: config.yaml must list `schema` first")
    return root


def one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's several lines as one, without their internals."""
    said = str(error)
    if said.startswith("Error merging override") and error.__cause__:
        said = f"{said.removeprefix('Error merging override').strip()}: {error.__cause__}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    keys = [line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")]
    text = " ".join(line for line in lines if not re.match(r"full_key:|object_type=|reference_type=", line))
    text = re.sub(r"\w+Error raised while composing config:\s*", "", text)
    prefix = f"{keys[0]}: " if keys and keys[0] not in text else ""
    return prefix + text + (_allowed(keys[0]) if keys else "")


def _allowed(key: str) -> str:
    """The keys beside a wrong one."""
    kind: object = Root
    for part in key.split("."):
        fields = _fields(kind)
        if fields is None:
            return ""
        if part not in fields:
            return f"; keys there: {', '.join(sorted(fields))}"
        kind = fields[part]
    return ""


def named_groups(parsed: Sequence[Override], folders: Sequence[Path]) -> frozenset[str]:
    """Groups whose option somebody chose, by an override or in the experiment's file."""
    named = {key_of(override) for override in parsed}
    for override in parsed:
        if key_of(override) == "experiment" and override.value() is not None:
            named |= {group for group, _ in _experiment_choices(str(override.value()), folders)}
    return frozenset(named & set(groups(folders)))


def _experiment_choices(name: str, folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """The groups an experiment file chooses in its defaults list, with their options."""
    file = next(path for folder in folders if (path := folder / "experiment" / f"{name}.yaml").exists())
    return _entries(yaml.safe_load(file.read_text(encoding="utf-8")) or {})


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(group, option) of each `group: option` line of a defaults list."""
    for entry in document.get("defaults", []):
        for key, option in entry.items() if isinstance(entry, dict) else ():
            yield str(key).removeprefix("override").strip().lstrip("/"), str(option)
