"""Saves and resumes a run: all ranks together, whole or not at all.

On a GPU the files are written in the background; on a CPU at once, since a fork of a rank that holds gloo's threads
and all of the model's memory gains nothing there.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.checkpoints import (
    MANIFEST,
    Manifest,
    StoredFile,
    checkpoint_path,
    checkpoints_dir,
    digest,
    free_bytes,
    prune,
    publish,
    read_manifest,
    share_of,
    steps_on_disk,
    temporary_path,
)
from pipeline.errors import RunDirError
from pipeline.rundir import RunDir
from pipeline.training import megatron, megatron_checkpoint
from pipeline.training.data import DataState, Sampler
from pipeline.training.events import EventSink
from pipeline.types import Experiment, Layout

_SPACE_MARGIN = 1.1
"""How much more than the state must be free: file headers, and what others write meanwhile."""
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a checkpoint is of."""

    model: Any
    optimizer: Any
    schedule: Any


@dataclass(slots=True)
class _Pending:
    """A checkpoint under way in the background."""

    step: int
    folder: Path
    began: float
    writer: megatron_checkpoint.BackgroundSave
    digests: list[StoredFile] = field(default_factory=list)
    error: OSError | None = None
    digesting: threading.Thread | None = None


class Checkpoints:
    """The checkpoints of a run as one rank takes part in them; every method is called by all ranks together."""

    def __init__(
        self,
        run: RunDir,
        trained: Trained,
        *,
        experiment: Experiment,
        sampler: Sampler,
        layout: Layout,
        attempt: int,
        device: torch.device,
        sink: EventSink,
    ) -> None:
        self._run = run
        self._trained = trained
        self._recipe = experiment.recipe
        self._sampler = sampler
        self._layout = layout
        self._attempt = attempt
        self._device = device
        self._sink = sink
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._pending: _Pending | None = None
        self._saved = 0

    @property
    def sampler(self) -> Sampler:
        """What deals out the samples, from where the loaded checkpoint stopped."""
        return self._sampler

    @property
    def last_saved(self) -> int:
        """Step of the newest checkpoint that this attempt loaded or published; 0: none."""
        return self._saved

    # ----------------------------------------------------------------- resuming

    def resume(self) -> int:
        """Loads the newest checkpoint that is whole; the step it is of, 0 when there is none."""
        steps: list[int] = self._agreed(steps_on_disk(self._run) if self._rank == 0 else [])
        for step in steps:
            manifest, complaint = self._agreed(_manifest_of(self._run, step) if self._rank == 0 else (None, ""))
            complaint = complaint or self._broken_file(manifest)
            if complaint:
                self._warn(f"checkpoint of step {step} is not whole and was not loaded: {complaint}")
                continue
            self._load(manifest)
            self._saved = step
            return step
        return 0

    def _broken_file(self, manifest: Manifest) -> str:
        """The first file whose content is not what was written; each rank reads its share."""
        folder, complaint = checkpoint_path(self._run, manifest.step), ""
        for file in share_of(manifest.files, self._rank, self._ranks):
            try:
                if digest(folder / file.name) != file:
                    complaint = complaint or f"{file.name} is damaged (its digest differs)"
            except OSError as error:
                complaint = complaint or f"{file.name} can't be read ({error.strerror})"
        return next((found for found in self._gathered(complaint) if found), "")

    def _load(self, manifest: Manifest) -> None:
        began = time.perf_counter()
        state = DataState(seed=manifest.seed, consumed_samples=manifest.consumed_samples, digest=manifest.data_digest)
        self._sampler = self._sampler.resumed(state, steps=manifest.step)
        model, optimizer = self._trained.model, self._trained.optimizer
        same = manifest.layout == self._layout
        wanted = megatron_checkpoint.sharded_state(model, optimizer, loading=True, with_rng=same)
        loaded = megatron_checkpoint.load(wanted, checkpoint_path(self._run, manifest.step))
        megatron_checkpoint.restore(model, optimizer, loaded)
        megatron.advance_schedule(self._trained.schedule, steps=manifest.step)
        if not same:
            self._warn(
                "the layout differs from the checkpoint's: its state was resharded, random generators start anew"
            )
        if self._rank == 0:
            seconds = time.perf_counter() - began
            self._sink.emit(
                "resumed",
                {"step": manifest.step, "of_attempt": manifest.attempt, "seconds": seconds, "same_layout": same},
            )

    # ----------------------------------------------------------------- saving

    def due(self, step: int) -> bool:
        """Whether the recipe wants a checkpoint after this step."""
        every = self._recipe.checkpoint_every_steps
        return bool(every) and (step % every == 0 or step == self._recipe.steps)

    def save(self, step: int, *, wait: bool) -> bool:
        """Saves the state after a step; False, with a warning, when it could not be. Without `wait` a GPU's state is
        written in the background, see `poll`."""
        self.poll(wait=True)
        if self._saved == step:
            return True
        if not megatron_checkpoint.can_be_saved(self._trained.model):
            self._warn("checkpoints of Megatron-FSDP can't be written by this version; nothing was saved")
            return False
        began = time.perf_counter()
        folder = self._prepared(step)
        if folder is None:
            return False
        model, optimizer = self._trained.model, self._trained.optimizer
        state = megatron_checkpoint.sharded_state(model, optimizer, loading=False, with_rng=True)
        if self._device.type == "cpu":
            return self._save_now(state, step, folder, began)
        writer = megatron_checkpoint.BackgroundSave()
        writer.start(state, folder)
        self._pending = _Pending(step=step, folder=folder, began=began, writer=writer)
        return self.poll(wait=True) if wait else True

    def poll(self, *, wait: bool = False) -> bool:
        """Publishes a checkpoint whose files were written in the background; False when it could not be."""
        pending = self._pending
        if pending is None:
            return True
        if pending.digesting is None and pending.writer.is_done(wait=wait):
            pending.digesting = threading.Thread(target=_digest_own, args=(pending, self._rank), daemon=True)
            pending.digesting.start()
        if pending.digesting is None:
            return True
        if wait:
            pending.digesting.join()
        if any(self._gathered(pending.digesting.is_alive())):
            return True
        self._pending = None
        return self._publish(pending)

    def _save_now(self, state: dict[str, Any], step: int, folder: Path, began: float) -> bool:
        pending = _Pending(step=step, folder=folder, began=began, writer=megatron_checkpoint.BackgroundSave())
        try:
            megatron_checkpoint.save(state, folder)
        except (OSError, RuntimeError) as error:  # a full disk; Megatron hands it to all ranks
            pending.error = OSError(0, " ".join(str(error).split())[:200])
        if pending.error is None:
            _digest_own(pending, self._rank)
        return self._publish(pending)

    def _prepared(self, step: int) -> Path | None:
        """The empty directory to write to; None, with a warning, where there is no room for it."""
        model, optimizer = self._trained.model, self._trained.optimizer
        needed = sum(self._gathered(megatron_checkpoint.state_bytes(model, optimizer))) * _SPACE_MARGIN
        needed /= self._layout.dp * self._layout.cp  # weights and unsharded states are held by each, written by one
        folder = temporary_path(self._run, step, self._attempt)
        complaint = self._agreed(_make_room(self._run, folder, needed) if self._rank == 0 else "")
        if complaint:
            self._warn(f"no checkpoint of step {step}: {complaint}")
            return None
        return folder

    def _publish(self, pending: _Pending) -> bool:
        shares = self._gathered((pending.digests, str(pending.error) if pending.error else ""))
        complaint = next((error for _, error in shares if error), "")
        if not complaint and self._rank == 0:
            complaint = self._finish(pending, [file for files, _ in shares for file in files])
        complaint = self._agreed(complaint)
        if complaint:
            self._warn(f"no checkpoint of step {pending.step}: {complaint}")
            return False
        self._saved = pending.step
        return True

    def _finish(self, pending: _Pending, files: Sequence[StoredFile]) -> str:
        """Rank 0 lists the files, gives the directory its name and lets old ones go; what went wrong, if anything."""
        data = self._sampler.state(pending.step)
        manifest = Manifest(
            run_id=self._run.run_id,
            attempt=self._attempt,
            step=pending.step,
            consumed_samples=data.consumed_samples,
            seed=data.seed,
            data_digest=data.digest,
            layout=self._layout,
            megatron_core=megatron.version(),
            time=time.time(),
            files=tuple(sorted(files, key=lambda file: file.name)),
        )
        try:
            publish(self._run, pending.folder, manifest)
            removed = prune(
                self._run,
                keep_last=self._recipe.checkpoint_keep_last,
                keep_every=self._recipe.checkpoint_keep_every_steps,
                attempt=self._attempt,
            )
        except OSError as error:
            return str(error)
        told = {"step": pending.step, "bytes": manifest.bytes, "seconds": time.perf_counter() - pending.began}
        self._sink.emit(
            "checkpoint", {**told, "removed": removed, "path": str(checkpoint_path(self._run, pending.step))}
        )
        return ""

    # ----------------------------------------------------------------- among ranks

    def _agreed(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self._device)
        return box[0]

    def _gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, on all ranks."""
        values: list[Any] = [None] * self._ranks
        dist.all_gather_object(values, value)
        return values

    def _warn(self, message: str) -> None:
        if self._rank == 0:
            self._sink.emit("warning", {"message": message})
            print(f"himori: {message}", flush=True)


def _manifest_of(run: RunDir, step: int) -> tuple[Manifest | None, str]:
    try:
        return read_manifest(run, step), ""
    except RunDirError as error:
        return None, str(error)


def _make_room(run: RunDir, folder: Path, needed: float) -> str:
    free = free_bytes(run)
    if free < needed:
        return f"it takes about {needed / _GIB:.2f} GiB and {free / _GIB:.2f} GiB are free in {checkpoints_dir(run)}"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        return f"{folder} can't be made ({error.strerror})"
    return ""


def _digest_own(pending: _Pending, rank: int) -> None:
    """Digests the files this rank wrote, whose names begin with its number; rank 0 takes those of nobody."""
    try:
        for path in sorted(pending.folder.iterdir()):
            owner = path.name.removeprefix("__").partition("_")[0] if path.name.startswith("__") else "0"
            if owner == str(rank) and path.name != MANIFEST:
                pending.digests.append(digest(path))
    except OSError as error:
        pending.error = error
