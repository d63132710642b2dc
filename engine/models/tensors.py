"""Reading and writing safetensors files without copies.

Job: tensors of a model folder by name, as views of memory-mapped files. Parts that lie side by side in a file (our own cache
writes q, k, v and gate, up that way) come back fused as one view, so loading copies nothing; parts that do not are
concatenated. Writing streams one tensor at a time. Format: an 8-byte little-endian header length, a JSON header, the data
(github.com/huggingface/safetensors). Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentkit.errors import EngineError

__all__ = ["TensorFolder", "TensorSpec", "write_safetensors"]

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ALIGNMENT = 64


@dataclass(frozen=True)
class _Entry:
    data: torch.Tensor  # the whole file, uint8 [bytes], memory-mapped
    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFolder:
    """The tensors of a folder's *.safetensors files, by name. `unused` names those never taken."""

    def __init__(self, folder: Path) -> None:
        """Maps the files. Raises EngineError for a folder without weights, or for a damaged or unreadable file."""
        files = _weight_files(folder)
        self._entries: dict[str, _Entry] = {}
        for file in files:
            self._entries.update(_read_entries(file))
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def unused(self) -> list[str]:
        return sorted(set(self._entries) - self._taken)

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def take(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The named tensors stacked along their first axis as one tensor of `shape`, in `dtype` on `device`.

        A view of the file where they are adjacent and already of that dtype on the CPU (do not write to it), else a copy.
        Raises EngineError where a tensor is missing or the shapes do not add up to `shape`.
        """
        entries = [self._entry(name) for name in names]
        rows = sum(entry.shape[0] for entry in entries)
        if (rows, *entries[0].shape[1:]) != shape or any(entry.shape[1:] != shape[1:] for entry in entries):
            found = ", ".join(f"{name} {list(entry.shape)}" for name, entry in zip(names, entries, strict=True))
            raise EngineError(f"{entries[0].file}: {found} does not have the shape {list(shape)} that config.json implies")
        if _adjacent(entries):
            return _view(entries[0], entries[-1].end, shape).to(device=device, dtype=dtype)
        fused = torch.empty(shape, dtype=dtype, device=device)
        start = 0
        for entry in entries:
            fused[start : start + entry.shape[0]].copy_(_view(entry, entry.end, entry.shape))
            start += entry.shape[0]
        return fused

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise EngineError(f"the model's weights have no tensor {name!r}; the files are incomplete, or do not belong to this config.json")
        self._taken.add(name)
        return entry


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / name for name in names]
    elif (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        what = f"lacks {', '.join(missing)}" if missing else "holds no *.safetensors file"
        raise EngineError(f"{folder} {what}; download the model again, or convert its weights to safetensors")
    return files


def _read_entries(file: Path) -> dict[str, _Entry]:
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size - 8:
                raise ValueError(f"the header claims {length} bytes, the file has {size}")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((info["data_offsets"][1] for info in header.values()), default=0)
        if end != size:
            raise ValueError(f"the header describes {end} bytes, the file has {size}")
        data = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
        return {name: _entry(file, data, name, info, 8 + length) for name, info in header.items()}
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise EngineError(f"{file}: not a whole safetensors file: {error}; delete it and fetch the model again") from error


def _entry(file: Path, data: torch.Tensor, name: str, info: dict[str, Any], base: int) -> _Entry:
    dtype = _DTYPES.get(str(info["dtype"]))
    if dtype is None:
        raise EngineError(f"{file}: the tensor {name} has the dtype {info['dtype']}; supported are {', '.join(_DTYPES)}")
    shape = tuple(info["shape"])
    start, end = info["data_offsets"]
    if end - start != math.prod(shape) * dtype.itemsize or start < 0:
        raise ValueError(f"the tensor {name} of shape {list(shape)} cannot lie in bytes {start} to {end}")
    return _Entry(data, str(file), dtype, shape, base + start, base + end)


def _adjacent(entries: Sequence[_Entry]) -> bool:
    return all(a.data is b.data and a.dtype == b.dtype and a.end == b.start for a, b in pairwise(entries))


def _view(entry: _Entry, end: int, shape: tuple[int, ...]) -> torch.Tensor:
    """The bytes from entry.start to `end` as a tensor; a copy only where the file does not align them."""
    data = entry.data[entry.start : end]
    if entry.start % entry.dtype.itemsize:
        data = data.clone()
    return data.view(entry.dtype).view(shape)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written: its name, dtype ("F32", "F16" or "BF16") and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


def write_safetensors(file: Path, specs: Sequence[TensorSpec], arrays: Iterable[np.ndarray[Any, Any]], metadata: dict[str, str]) -> None:
    """Writes tensors in the given order, each taken from `arrays` (same order) when its turn comes.

    arrays: contiguous, of the bytes that spec.dtype says (BF16 as uint16). Raises ValueError where an array has another size.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for spec in specs:
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, offset + spec.nbytes]}
        offset += spec.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for spec, array in zip(specs, arrays, strict=True):
            if array.nbytes != spec.nbytes:
                raise ValueError(f"{spec.name}: {array.nbytes} bytes given, {spec.nbytes} declared")
            stream.write(np.ascontiguousarray(array).data)
