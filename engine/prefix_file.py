"""Computed prefixes in a file: one safetensors file with keys and values page by page, and the tree as JSON in its header.

Inputs: a pool, a path, a digest of the model. Written beside the target and renamed, so that readers see a whole file or none;
read only if format, model, shape and the digest of the contents agree. No pickle. Runs on the engine thread.
This module knows nothing of models or requests.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agentkit.engine.kv import PAGE, KVPool
from agentkit.engine.prefix import Node, domain
from agentkit.errors import EngineError

_FAMILY = "agentkit-prefix-"
FORMAT = f"{_FAMILY}1"


def save_prefixes(pool: KVPool, path: Path, model: str, *, pinned_only: bool) -> int:
    """Writes the tree of requests without adapter and salt; returns the number of tokens written. Raises OSError or EngineError."""
    nodes = _in_order(pool, pinned_only)
    places = {id(node): i for i, node in enumerate(nodes)}
    pages = [pool.data[:, :, :, node.page * PAGE : node.page * PAGE + len(node.tokens)] for node in nodes]
    data = (torch.cat(pages, 3) if pages else pool.data[:, :, :, :0]).cpu().contiguous()  # [L, 2, KV, tokens, row]
    tree = [[places.get(id(node.parent), -1), list(node.tokens)] for node in nodes]
    header = {"format": FORMAT, "model": model, "kv": _kind(pool), "tree": json.dumps(tree, separators=(",", ":"))}
    header["digest"] = _digest(data, header)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file({"kv": data}, name, metadata=header)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise EngineError(f"{path} could not be written ({error}); is the disk full?") from error
        raise
    return data.shape[3]


def is_meant_for(pool: KVPool, path: Path, model: str) -> bool:
    """Whether a prefix file was written by this version for this model and precision. Raises EngineError if it is no prefix file at all."""
    header, _ = _open(path)
    if not header.get("format", "").startswith(_FAMILY):
        raise EngineError(f"{path} is not a prefix file, and will not be written over; choose another name")
    return (header["format"], header.get("model"), header.get("kv")) == (FORMAT, model, _kind(pool))


def load_prefixes(pool: KVPool, path: Path, model: str) -> int:
    """Puts a file's pages into the tree, parents first, until memory is full. Raises FileNotFoundError or EngineError."""
    header, data = _open(path, data=True)
    if header.get("format") != FORMAT:
        raise EngineError(f"{path} is not a prefix file of this version ({header.get('format')!r}, expected {FORMAT!r}); write it again with prefix.save")
    for name, what, mine in (("model", "model, weights or kv policy", model), ("kv", "kv format", _kind(pool))):
        if header.get(name) != mine:
            raise EngineError(f"{path} was written with another {what} ({header.get(name)!r}, here {mine!r}); its keys and values mean nothing here")
    if "tree" not in header or header.get("digest") != _digest(data, header):
        raise EngineError(f"{path} is damaged: its contents do not match their digest; delete it and write it again with prefix.save")
    return _insert(pool, json.loads(header["tree"]), data)


def _insert(pool: KVPool, tree: list[Any], data: torch.Tensor) -> int:
    """Nodes as sequences grow: each is computed after its parent, so a path of nodes is a sequence."""
    root = pool.tree.enter(domain())
    nodes: list[Node | None] = []
    at = loaded = 0
    for parent, ids in tree:
        tokens = tuple(ids)
        above = root if parent < 0 else nodes[parent]
        node = None if above is None else pool.put(above, tokens, data[:, :, :, at : at + len(tokens)])
        nodes.append(node)
        at += len(tokens)
        loaded += 0 if node is None else len(tokens)
    for node in nodes:
        if node is not None:
            pool.let_go(node)
    pool.tree.leave(root)
    return loaded


def _in_order(pool: KVPool, pinned_only: bool) -> list[Node]:
    """Nodes of the plain domain, parents before children."""
    plain = domain()
    found = []
    for node in pool.tree:
        path = node.path()
        root = path[0].parent
        if root is not None and root.key == plain and (pool.tree.is_pinned(node) or not pinned_only):
            found.append((len(path), node.page, node))
    return [node for _, _, node in sorted(found, key=lambda entry: entry[:2])]


def _kind(pool: KVPool) -> str:
    s = pool.shape
    return f"{s.layers} layers, {s.kv_heads} heads of {s.head_dim}, {str(s.dtype).removeprefix('torch.')}"


def _digest(data: torch.Tensor, header: dict[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in ("format", "model", "kv", "tree"):
        digest.update(header[name].encode() + b"\0")
    digest.update(data.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _open(path: Path, *, data: bool = False) -> tuple[dict[str, str], torch.Tensor]:
    """Header and, if asked for, keys and values (else nothing)."""
    if not path.is_file():
        if path.exists():
            raise EngineError(f"{path} is no file; name a file in which prefixes are kept, or none")
        raise FileNotFoundError(f"{path}: no such prefix file; write one with engine.prefix.save")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = dict(file.metadata() or {})
            return header, file.get_tensor("kv") if data else torch.empty(0)
    except (SafetensorError, OSError, ValueError) as error:
        raise EngineError(f"{path} is damaged and cannot be read ({error}); delete it and write it again with prefix.save") from error
