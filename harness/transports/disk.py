"""A safetensors file for each version."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.core.errors import RunStopped, UserError
from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.protocol import TransportOptions


@dataclass(frozen=True, slots=True)
class DiskPayload:
    """The file, under a path that every receiver must see."""

    path: str


class DiskSender:
    """Writes ``weights-VERSION.safetensors``; see ``protocol.WeightSender``.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, options: TransportOptions) -> None:
        self._own_folder = options.folder is None
        self._folder = Path(options.folder or tempfile.mkdtemp(prefix="weights-")).absolute()
        self._paths: dict[int, Path] = {}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the folder for weights: {error.strerror}", "transport.folder", "choose another folder"
            ) from error
        self.notes: tuple[str, ...] = (f"weights go through files in {self._folder}",)

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]
    ) -> WeightHandle:
        """Write the file under another name, then rename it, so that nobody reads half of it."""
        layout = BucketLayout.of(weights)
        if version in self._paths:
            raise ValueError(f"version {version} is published already")
        self._remove_all_but(still_needed)
        path = self._folder / f"weights-{version}.safetensors"
        self._write(weights, path)
        self._paths[version] = path
        return WeightHandle(version, layout.payload_bytes, len(weights), None, DiskPayload(str(path)))

    def published(self, version: int) -> Mapping[str, Tensor]:
        """Read the file back."""
        if version not in self._paths:
            raise ValueError(f"version {version} is not held; versions {sorted(self._paths)} are")
        return load_file(self._paths[version])

    def outgoing(self, version: int) -> list[Tensor]:
        """Nothing: receivers read by themselves."""
        return []

    def close(self) -> None:
        """Remove the files, and the folder if it was a temporary one."""
        self._remove_all_but(frozenset())
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_all_but(self, still_needed: frozenset[int]) -> None:
        for version in self._paths.keys() - still_needed:
            self._paths.pop(version).unlink(missing_ok=True)

    def _write(self, weights: Mapping[str, Tensor], path: Path) -> None:
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


class DiskReceiver:
    """Reads the file; see ``protocol.WeightReceiver``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return the file's tensors.

        Raises:
            RunStopped: it is not there.
        """
        payload: DiskPayload = weight_handle.payload
        if not Path(payload.path).exists():
            raise RunStopped(f"the weights of version {weight_handle.version} are not on disk: no file {payload.path}")
        return load_file(payload.path)

    def close(self) -> None:
        """Nothing is kept."""
