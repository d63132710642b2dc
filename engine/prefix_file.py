"""Computed prefixes in a file: one safetensors file with keys and values block by block, and the tree as JSON in its header.

Keys and values are a tensor for each group of layers (kv_groups.py): those with a window need not be there for every block.

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

from agentkit.engine.kv import KVPool
from agentkit.engine.prefix_node import Node, domain
from agentkit.errors import EngineError

_FAMILY = "agentkit-prefix-"
FORMAT = f"{_FAMILY}2"


def save_prefixes(pool: KVPool, path: Path, model: str, *, pinned_only: bool) -> int:
    """Writes the tree of requests without adapter and salt; returns the number of tokens written. Raises OSError or EngineError."""
    nodes = _in_order(pool, pinned_only)
    places = {id(node): i for i, node in enumerate(nodes)}
    contents = [[None if pinned_only and not pool.tree.is_pinned(node, i) else rows for i, rows in enumerate(pool.memory.read(node))] for node in nodes]
    tree = [[places.get(id(node.parent), -1), list(node.tokens), [rows is not None for rows in own]] for node, own in zip(nodes, contents, strict=True)]
    data = {f"kv{i}": _joined(pool, i, [own[i] for own in contents]) for i in range(len(pool.groups.groups))}
    header = {"format": FORMAT, "model": model, "kv": _kind(pool), "tree": json.dumps(tree, separators=(",", ":"))}
    header["digest"] = _digest(data, header)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(data, name, metadata=header)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise EngineError(f"{path} could not be written ({error}); is the disk full?") from error
        raise
    return sum(len(node.tokens) for node in nodes)


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
    return _insert(pool, json.loads(header["tree"]), [data[name] for name in sorted(data)])


def _joined(pool: KVPool, group: int, contents: list[torch.Tensor | None]) -> torch.Tensor:
    """[layers of the group, 2, KV, tokens, row]"""
    there = [rows for rows in contents if rows is not None]
    if there:
        return torch.cat(there, 3).cpu().contiguous()
    shape = pool.data.shape
    return pool.data.new_empty(len(pool.groups.groups[group].layers), *shape[1:3], 0, shape[4], device="cpu")


def _insert(pool: KVPool, tree: list[Any], data: list[torch.Tensor]) -> int:
    """Nodes as sequences grow: each is computed after its parent, so a path of nodes is a sequence."""
    root = pool.tree.enter(domain())
    nodes: list[Node | None] = []
    held: list[int] = []
    at, loaded = [0] * len(data), 0
    for parent, ids, parts in tree:
        tokens = tuple(ids)
        above = root if parent < 0 else nodes[parent]
        contents = [rows[:, :, :, i : i + len(tokens)] if there else None for rows, i, there in zip(data, at, parts, strict=True)]
        node = None if above is None else pool.memory.put(above, tokens, contents, held)
        nodes.append(node)
        at = [i + len(tokens) * there for i, there in zip(at, parts, strict=True)]
        loaded += 0 if node is None else len(tokens)
    pool.memory.give_back(held)
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
    groups = " and ".join(f"{len(group.layers)} layers" + ("" if group.kept is None else f" of {group.kept} positions") for group in pool.groups.groups)
    return f"{groups}, {s.kv_heads} heads of {s.head_dim}, {str(s.dtype).removeprefix('torch.')}"


def _digest(data: dict[str, torch.Tensor], header: dict[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in ("format", "model", "kv", "tree"):
        digest.update(header[name].encode() + b"\0")
    for _, rows in sorted(data.items()):
        digest.update(rows.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _open(path: Path, *, data: bool = False) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Header and, if asked for, keys and values (else nothing)."""
    if not path.is_file():
        if path.exists():
            raise EngineError(f"{path} is no file; name a file in which prefixes are kept, or none")
        raise FileNotFoundError(f"{path}: no such prefix file; write one with engine.prefix.save")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = dict(file.metadata() or {})
            return header, {name: file.get_tensor(name) for name in file.keys()} if data else {}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise EngineError(f"{path} is damaged and cannot be read ({error}); delete it and write it again with prefix.save") from error
