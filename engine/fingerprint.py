"""A digest that tells models apart: two engines with the same one compute the same keys and values.

Inputs: a loaded model and how its weights are held. Weight files are sampled evenly (a megabyte or so), not read whole: enough
to notice other weights, and fast enough for every start. This module knows nothing of caches.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentkit.engine.models.loader import LoadedModel

PIECES, PIECE = 256, 4096
WEIGHTS = (".safetensors", ".gguf", ".bin")


def fingerprint(loaded: LoadedModel, weights: str) -> str:
    """Hex digest of architecture, sampled weights, and the form the engine holds them in."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((loaded.config, weights, str(loaded.model.dtype))).encode())
    folder = loaded.path if loaded.path.is_dir() else loaded.path.parent
    for file in sorted(f for f in folder.iterdir() if f.suffix in WEIGHTS and f.is_file()):
        digest.update(file.name.encode() + file.stat().st_size.to_bytes(8, "little"))
        _sample(file, digest)
    return digest.hexdigest()


def _sample(file: Path, digest: hashlib.blake2b) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        for piece in range(PIECES + 1):
            stream.seek(piece * max(0, size - PIECE) // PIECES)
            digest.update(stream.read(PIECE))
