"""A folder of Hugging Face safetensors: tensors read one at a time, and written in files of bounded size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.errors import DataError

_INDEX = "model.safetensors.index.json"
_FILE_BYTES = 5 * 10**9


class WeightsFolder:
    """Opens files as tensors of them are asked for; close it, or use it with `with`."""

    def __init__(self, path: Path) -> None:
        """Raises DataError when there are no weights in the folder."""
        self.path = path
        self._files = _files_by_name(path)
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> WeightsFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def config(self) -> dict[str, Any]:
        """What config.json holds."""
        return _read_json(self.path / "config.json")

    def names(self) -> list[str]:
        """All tensors there are."""
        return list(self._files)

    def read(self, name: str) -> torch.Tensor:
        """A whole tensor, on the host; raises DataError when it isn't there."""
        if name not in self._files:
            raise DataError(f"{self.path}: holds no tensor {name}; there are {len(self._files)} others")
        file = self._files[name]
        try:
            if file not in self._open:
                self._open[file] = self._stack.enter_context(safe_open(self.path / file, framework="pt"))
            tensor: torch.Tensor = self._open[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{self.path / file}: {name} can't be read ({str(error).splitlines()[0]})") from error
        return tensor


def write_weights(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Writes weights and config.json; the index last, so a folder that has one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    portions = _portions(tensors)
    index: dict[str, str] = {}
    for number, portion in enumerate(portions, start=1):
        file = f"model-{number:05}-of-{len(portions):05}.safetensors"
        save_file({name: tensors[name].contiguous().clone() for name in portion}, folder / file, {"format": "pt"})
        index |= dict.fromkeys(portion, file)
    _write_json(folder / "config.json", config)
    size = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / _INDEX, {"metadata": {"total_size": size}, "weight_map": index})


def _portions(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    portions: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if portions[-1] and size + tensor.nbytes > _FILE_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(name)
        size += tensor.nbytes
    return portions


def _files_by_name(path: Path) -> dict[str, str]:
    """The file that holds each tensor."""
    if (path / _INDEX).is_file():
        weights = _read_json(path / _INDEX).get("weight_map")
        if not isinstance(weights, dict):
            raise DataError(f"{path / _INDEX}: has no weight_map")
        return {str(name): str(file) for name, file in weights.items()}
    file = path / "model.safetensors"
    try:
        with safe_open(file, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), file.name)
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file}: can't be read ({reason}); give a Hugging Face folder of safetensors") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: can't be read ({error})") from error
    if not isinstance(document, dict):
        raise DataError(f"{file}: is no JSON object")
    return document


def _write_json(file: Path, document: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
