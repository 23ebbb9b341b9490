"""A model folder's tensors: *.safetensors, in one file or sharded with model.safetensors.index.json.

Tensors are read one by one when they are asked for, so that a model is never in memory twice. Nothing is downloaded and
no code of the folder is run. What the index says is not trusted: it may only name files of the folder itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

INDEX = "model.safetensors.index.json"


class SafetensorsFolder:
    """Finds tensors by name. ValueError with file and key for what is missing, damaged or misshapen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        index = folder / INDEX
        self._file_of = self._from_index(index) if index.exists() else self._from_files()

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, which must have `shape`."""
        if name not in self._file_of:
            raise ValueError(f"{self._folder}: no tensor {name}")
        file = self._file_of[name]
        from safetensors import SafetensorError

        try:
            tensor: Tensor = self._opened(file).get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{self._folder / file}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{self._folder}: tensor {name} is {tuple(tensor.shape)}, config.json asks for {shape}")
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ValueError(
                f"{self._folder / file}: tensor {name} is {tensor.dtype}; quantized checkpoints are not supported"
            )
        return tensor

    def _from_files(self) -> dict[str, str]:
        files = sorted(path.name for path in self._folder.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{self._folder}: no *.safetensors file")
        return {name: file for file in files for name in self._opened(file).keys()}  # noqa: SIM118 - not a mapping

    def _from_index(self, index: Path) -> dict[str, str]:
        try:
            weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
            placed = {str(name): str(file) for name, file in weight_map.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index}: weight_map is not readable: {error!r}") from error
        for file in sorted(set(placed.values())):
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise ValueError(f"{index}: weight_map names {file!r}, which is no *.safetensors file of the folder")
            if not (self._folder / file).is_file():
                raise ValueError(f"{self._folder / file}: is missing, {INDEX} names it")
        return placed

    def _opened(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._open:
            try:
                self._open[file] = safe_open(self._folder / file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{self._folder / file}: {error}") from error
        return self._open[file]
