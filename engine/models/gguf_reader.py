"""The structure of a GGUF file: metadata and tensors, mapped, decoded only where they are asked for.

A model's vocabulary makes up nearly all of a header; passing over it takes milliseconds, decoding it (as the gguf package's own
reader does on opening) takes seconds. Format, version 2 and 3: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
Knows nothing of what the entries mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from agentkit.errors import EngineError

__all__ = ["Metadata", "StoredTensor", "read_gguf"]

Array = np.ndarray[Any, np.dtype[Any]]
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_TYPED = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}


@dataclass(frozen=True)
class StoredTensor:
    """shape: row-major, outermost first. data: numbers of that shape, or for quantised kinds uint8 [..., bytes of a row]."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: Array


class Metadata(dict[str, Any]):
    """Values by key, decoded when they are asked for; the dict itself holds (type, place)."""

    def __init__(self, data: memoryview, places: dict[str, tuple[int, int]]) -> None:
        super().__init__(places)
        self._data = data

    def __getitem__(self, key: str) -> Any:
        kind, at = super().__getitem__(key)
        return _value(self._data, kind, at)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - dict.get would not decode


def read_gguf(path: Path) -> tuple[Metadata, list[StoredTensor]]:
    """Metadata and tensors of a file. Raises EngineError for one that is damaged, cut off or of another version."""
    data: Array = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)
    view = memoryview(data)  # type: ignore[arg-type] # numpy's stubs do not say that arrays are buffers before 3.12
    try:
        return _read(view, data)
    except (struct.error, ValueError, UnicodeDecodeError, KeyError, IndexError, OverflowError) as error:
        raise EngineError(f"{path}: not a whole GGUF file: {error}") from error


def _read(view: memoryview, data: Array) -> tuple[Metadata, list[StoredTensor]]:
    magic, version, tensors, entries = struct.unpack_from("<4sIQQ", view, 0)
    if magic != b"GGUF" or version not in _VERSIONS:
        raise ValueError(f"it begins with {magic!r}, version {version}; little-endian versions {_VERSIONS} are supported")
    at = 24
    places: dict[str, tuple[int, int]] = {}
    for _ in range(entries):
        key, at = _string(view, at)
        (kind,) = struct.unpack_from("<I", view, at)
        places[key] = kind, at + 4
        at = _after(view, kind, at + 4)
    metadata = Metadata(view, places)
    infos = []
    for _ in range(tensors):
        name, at = _string(view, at)
        (dimensions,) = struct.unpack_from("<I", view, at)
        *shape, kind, offset = struct.unpack_from(f"<{dimensions}QIQ", view, at + 4)
        infos.append((name, tuple(reversed(shape)), GGMLQuantizationType(kind), offset))
        at += 16 + 8 * dimensions
    alignment = int(metadata.get("general.alignment", 32))
    base = -(-at // alignment) * alignment
    return metadata, [StoredTensor(name, shape, kind, _tensor(data, base + offset, shape, kind)) for name, shape, kind, offset in infos]


def _tensor(data: Array, start: int, shape: tuple[int, ...], kind: GGMLQuantizationType) -> Array:
    per_block, size = GGML_QUANT_SIZES[kind]
    if shape[-1] % per_block:
        raise ValueError(f"a row of {shape[-1]} weights is not a whole number of {kind.name} blocks")
    stored = (*shape[:-1], shape[-1] // per_block * size)
    count = int(np.prod(stored, dtype=np.int64))
    if start + count > data.size:
        raise ValueError(f"a tensor ends at byte {start + count}, the file at {data.size}")
    part = data[start : start + count]
    return part.view(_TYPED[kind.name]).reshape(shape) if kind.name in _TYPED else part.reshape(stored)


def _string(view: memoryview, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", view, at)
    if at + 8 + length > len(view):
        raise ValueError(f"a text of {length} bytes at {at} is longer than the file")
    return str(view[at + 8 : at + 8 + length], "utf-8"), at + 8 + length


def _after(view: memoryview, kind: int, at: int) -> int:
    """Where the value of this type at `at` ends."""
    if kind == _STRING:
        return at + 8 + int(struct.unpack_from("<Q", view, at)[0])
    if kind != _ARRAY:
        return at + struct.calcsize("<" + _FORMATS[kind])
    element, length = struct.unpack_from("<IQ", view, at)
    at += 12
    if element in _FORMATS:
        return at + int(length) * struct.calcsize("<" + _FORMATS[element])
    size = struct.Struct("<Q").unpack_from
    if element == _STRING:
        for _ in range(length):
            at += 8 + int(size(view, at)[0])
        return at
    for _ in range(length):
        at = _after(view, element, at)
    return at


def _value(view: memoryview, kind: int, at: int) -> Any:
    if kind == _STRING:
        return _string(view, at)[0]
    if kind == _ARRAY:
        element, length = struct.unpack_from("<IQ", view, at)
        if element in _FORMATS:
            return list(struct.unpack_from(f"<{length}{_FORMATS[element]}", view, at + 12))
        return list(_items(view, element, length, at + 12))
    return struct.unpack_from("<" + _FORMATS[kind], view, at)[0]


def _items(view: memoryview, element: int, length: int, at: int) -> Iterator[Any]:
    for _ in range(length):
        yield _value(view, element, at)
        at = _after(view, element, at)
