"""A safetensors file for each version, whose path every receiver must see."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.core.errors import RunStopped, UserError
from harness.core.types import WeightHandle
from harness.transports.buffers import StoringSender
from harness.transports.protocol import StatelessReceiver, TransportOptions


class DiskSender(StoringSender[str]):
    """Writes ``weights-VERSION.safetensors``.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, options: TransportOptions) -> None:
        super().__init__()
        self._own_folder = options.folder is None
        self._folder = Path(options.folder or tempfile.mkdtemp(prefix="weights-")).absolute()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the folder for weights: {error.strerror}", "transport.folder", "choose another folder"
            ) from error
        self.notes = (f"weights go through files in {self._folder}",)

    def close(self) -> None:
        super().close()
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _store(self, weights: Mapping[str, Tensor], version: int) -> str:
        """Write the file under another name, then rename it, so that nobody reads half of it."""
        path = self._folder / f"weights-{version}.safetensors"
        partial = path.with_suffix(".partial")
        try:
            save_file(_separate(weights), partial)
            os.replace(partial, path)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise UserError(
                f"cannot write weights to disk: {error}",
                str(path),
                "free space on that disk, or set transport.folder to another",
            ) from error
        return str(path)

    def _read(self, stored: str) -> dict[str, Tensor]:
        return load_file(stored)

    def _remove(self, stored: str) -> None:
        Path(stored).unlink(missing_ok=True)


def _separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors, no two of which share memory: safetensors refuses others."""
    separate: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in weights.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        separate[name] = plain.clone() if storage in storages else plain
        storages.add(storage)
    return separate


class DiskReceiver(StatelessReceiver):
    """Reads the file."""

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        path: str = weight_handle.payload
        if not Path(path).exists():
            raise RunStopped(f"the weights of version {weight_handle.version} are not on disk: no file {path}")
        return load_file(path)
