"""Optuna's side of a search: its storage, its trials and their choices; the one importer of optuna."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.sweep_config import Dimension
from pipeline.types import SweeperSpec

if TYPE_CHECKING:
    import optuna

RUNG_FACTOR = 3
_DIGEST = "digest"


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What is searched, as `search.json` holds it."""

    sweeper: SweeperSpec
    dimensions: tuple[Dimension, ...]
    fixed: tuple[str, ...]
    cwd: str
    """The folder relative paths were meant from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One trial."""

    number: int
    """From 0."""
    choices: dict[str, str]
    digest: str | None
    """Its point; None while it was not submitted."""
    value: float | None = None


class Study:
    """The trials of one search; all that is known is in its storage."""

    def __init__(self, study: optuna.Study, search: Search) -> None:
        self._study = study
        self._search = search

    def ask(self) -> Trial:
        """Chooses the next trial."""
        asked = self._study.ask({one.key: _distribution(one) for one in self._search.dimensions})
        return Trial(number=asked.number, choices=_choices(asked.params), digest=None)

    def note(self, trial: Trial, digest: str) -> None:
        """Writes down which point a trial is."""
        self._live(trial).set_user_attr(_DIGEST, digest)

    def running(self) -> list[Trial]:
        """Trials that are not closed."""
        import optuna

        found = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        return [_trial(one) for one in found]

    def ended(self) -> int:
        """How many trials are closed."""
        return sum(one.state.is_finished() for one in self._study.get_trials(deepcopy=False))

    def counts(self) -> tuple[int, int]:
        """Trials stopped early, and trials that failed."""
        import optuna

        states = [one.state for one in self._study.get_trials(deepcopy=False)]
        return states.count(optuna.trial.TrialState.PRUNED), states.count(optuna.trial.TrialState.FAIL)

    def best(self) -> Trial | None:
        """The best trial that came to its end."""
        import optuna

        done = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        known = [one for one in done if one.value is not None]
        return _trial(min(known, key=lambda one: one.value or 0.0)) if known else None

    def falls_behind(self, trial: Trial, step: int, value: float) -> bool:
        """Reports the newest value of a trial; whether it is not among the best at the rung it has reached."""
        live = self._live(trial)
        live.report(value, step)
        return self._search.sweeper.prune and live.should_prune()

    def close(self, trial: Trial, value: float | None) -> None:
        """Closes a trial that is over; without a value it failed."""
        import optuna

        if value is None:
            self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial.number, value)

    def close_as_pruned(self, trial: Trial) -> None:
        """Closes a trial that was stopped early."""
        import optuna

        self._study.tell(trial.number, state=optuna.trial.TrialState.PRUNED)

    def _live(self, trial: Trial) -> optuna.Trial:
        import optuna

        frozen = self._study.get_trials(deepcopy=False)[trial.number]
        return optuna.Trial(self._study, frozen._trial_id)


def open_study(storage: Path, search: Search) -> Study:
    """The study in a storage file, begun if it is not there; raises ConfigError without optuna."""
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise ConfigError("sweeper=optuna: optuna is not installed here; pip install 'himori[hpo]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweeper = search.sweeper
    backend = JournalFileBackend(str(storage))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name="search",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=sweeper.seed, n_startup_trials=sweeper.startup_trials),
        pruner=optuna.pruners.SuccessiveHalvingPruner(
            min_resource=sweeper.prune_first_step, reduction_factor=RUNG_FACTOR
        ),
    )
    return Study(study, search)


def _distribution(one: Dimension) -> optuna.distributions.BaseDistribution:
    import optuna

    if one.values:
        return optuna.distributions.CategoricalDistribution(one.values)
    if one.step is not None:
        return optuna.distributions.IntDistribution(int(one.low), int(one.high), log=one.log, step=one.step)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)


def _trial(frozen: optuna.trial.FrozenTrial) -> Trial:
    return Trial(
        number=frozen.number,
        choices=_choices(frozen.params),
        digest=frozen.user_attrs.get(_DIGEST),
        value=frozen.value,
    )


def _choices(params: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in params.items()}
