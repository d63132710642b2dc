"""What has been compiled before: programs in memory and on disk; tries of vocabularies and their common states and rows on disk; found by content.

A key holds everything that a result depends on: the source itself with all options, the version of this package's sources, and
Python's. Sources that are not plain data (a subclass of dict, a Decimal) are compiled each time. What is stored are integers, bytes
and JSON, and it is checked again when it is read. Mask rows are not stored: walking those of a call takes about 3 ms
(docs/performance.md). Knows nothing of how anything is compiled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import marshal
import os
import struct
import sys
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentkit.grammars.expr import Program
from agentkit.grammars.report import Report
from agentkit.grammars.settings import settings

__all__ = ["Compiled", "compiled_once", "stored_array", "vocabulary_digest"]

Compiled = tuple[Program, Report | None]

_KEPT = 256  # programs in memory
_SMALL = 1000  # tokens of a vocabulary that is built faster than it is looked up

_memory: OrderedDict[bytes, Compiled] = OrderedDict()
_memory_lock = threading.Lock()


def compiled_once(source: object, compile: Callable[[], Compiled]) -> Compiled:
    """`compile()`, or what it gave for an equal source before.

    source: the kind of grammar, its text or schema and all options, as plain data. Equal means of equal types too: 1 is not True.
    What `compile` raises is raised, and nothing is kept.
    """
    key = _key("program", source)
    if key is None:
        return compile()
    with _memory_lock:
        if key in _memory:
            _memory.move_to_end(key)
            return _memory[key]
    disk = settings.disk
    stored = disk.get(key) if disk is not None else None
    found = _unpacked(stored) if stored is not None else None
    if found is None:
        found = compile()
        if disk is not None:
            disk.put(key, _packed(*found))
    with _memory_lock:
        _memory[key] = found
        while len(_memory) > _KEPT:
            _memory.popitem(last=False)
    return found


def _forget() -> None:
    with _memory_lock:
        _memory.clear()


settings.on_clear(_forget)


def vocabulary_digest(tokens: Sequence[bytes | None], options: object) -> bytes | None:
    """What tells a vocabulary's tokens and options from any other; None for one so small that nothing of it is worth keeping."""
    if len(tokens) < _SMALL:
        return None
    h = hashlib.blake2b(np.array([-1 if token is None else len(token) for token in tokens], "<i4").tobytes())
    h.update(b"".join(token for token in tokens if token))
    h.update(repr(options).encode())
    return h.digest()


def stored_array(kind: str, digest: bytes | None, build: Callable[[], np.ndarray]) -> np.ndarray:
    """`build()`, an int32 array, or what it gave before for an equal vocabulary (see vocabulary_digest). The caller may write to it."""
    disk = settings.disk
    key = _key(kind, digest) if disk is not None and digest is not None else None
    if disk is None or key is None:
        return build()
    stored = disk.get(key)
    if stored is not None and len(stored) % 4 == 0:
        return np.frombuffer(stored, "<i4").astype(np.int32)
    array = build()
    disk.put(key, array.astype("<i4").tobytes())
    return array


def _key(kind: str, source: Any) -> bytes | None:
    """Hash of what decides a result; None for a source that is not plain data."""
    try:
        data = marshal.dumps((kind, source), 2)  # version 2 depends on the values alone, not on who else refers to them
    except ValueError:
        return None
    return hashlib.blake2b(_version() + data, digest_size=32).digest()


@functools.cache
def _version() -> bytes:
    """Hash of this package's sources and of what else they depend on."""
    h = hashlib.blake2b(repr((sys.version_info[:3], unicodedata.unidata_version, sys.byteorder)).encode(), digest_size=32)
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    for path in sources:
        h.update(path.read_bytes())
    if not sources:  # nothing tells versions apart, so no process may find what another has stored
        h.update(os.urandom(32))
    return h.digest()


_LENGTH = struct.Struct("<I")


def _packed(program: Program, report: Report | None) -> bytes:
    """Length of the head, the head as JSON, then the integers and bytes of the program."""
    entries = None if report is None else list(report)
    arrays = [part.astype("<i4").tobytes() for part in (program.code, program.starts, program.rules)]
    fields = {"sizes": [*map(len, arrays), len(program.blob)], "root": int(program.root), "specials": list(program.specials)}
    head = json.dumps({**fields, "digest": program.digest.hex(), "report": entries}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *arrays, program.blob.tobytes()])


def _unpacked(data: bytes) -> Compiled | None:
    """The program and report again; None if this is not what `_packed` makes."""
    try:
        at = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        head: dict[str, Any] = json.loads(data[_LENGTH.size : at])
        parts = []
        for size in head["sizes"]:
            parts.append(data[at : at + size])
            at += size
        code, starts, rules = (np.frombuffer(part, "<i4").astype(np.int32) for part in parts[:3])
        program = Program.make(code, starts, parts[3], rules, head["root"], tuple(head["specials"]))
        report = None if head["report"] is None else Report.restored(head["report"])
    except (struct.error, ValueError, KeyError, IndexError, TypeError):
        return None
    return (program, report) if program.digest.hex() == head["digest"] and at == len(data) else None
