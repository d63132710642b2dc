"""Compile the grammar kernels ahead of their first use, and say whether that has been done.

numba compiles the kernels when the first of them runs and keeps them in the cache folder (see kernel_module.py). So this runs each of them once,
on a vocabulary of single bytes. Knows nothing of models.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentkit.grammars.core.decorators import GRAMMARS
from agentkit.grammars.grammar import Grammar
from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["begin_compiling", "compile_kernels", "kernels_cached"]

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "text": {"type": "string"}, "inner": {"$ref": "#"}},
    "required": ["kind"],
    "additionalProperties": {"type": "integer"},
}
_ASIDE = "from agentkit.grammars.warmup import compile_kernels; compile_kernels()"
_helpers: list[subprocess.Popen[bytes]] = []
_TEXT = b'{"kind":"b","text":"a\\n","other":1}'


def kernels_cached() -> bool:
    """Have the kernels of these sources been compiled on this machine before?"""
    return GRAMMARS.cached()


def begin_compiling() -> None:
    """Have another process compile them, if they are not cached and there is a second core. `compile_kernels` waits for it.

    Whatever keeps that process from it is found, and told, when `compile_kernels` then does the work itself. It is left to its work
    where this process ends sooner: the next one finds it done. Ctrl-C ends both.
    """
    if not kernels_cached() and not _helpers and (os.cpu_count() or 1) > 1 and _is_python(sys.executable):
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        _helpers.append(subprocess.Popen([sys.executable, "-P", "-c", _ASIDE], **quiet))  # -P: not what lies in the current folder


def _is_python(executable: str | None) -> bool:
    """Else it is a program that Python is built into: it would be started once more, and start another in turn."""
    return Path(executable or "").name.lower().startswith("python")


def compile_kernels() -> None:
    """Run every kernel once; quick if they are in the cache folder already, else half a minute on one core."""
    for helper in _helpers:
        helper.wait()
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], stop_token_ids=[256])
    matcher = Grammar.from_json_schema(_SCHEMA, key_order="any").matcher(vocabulary)
    for byte in _TEXT:
        matcher.mask()
        matcher.forced_bytes()
        matcher.accept(byte)
    matcher.rollback(len(_TEXT))
    matcher.fits(_TEXT[0], matcher.completion_tokens())
    matcher.guarded_mask(matcher.completion_tokens())
    matcher.accept_bytes(_TEXT)
    vocabulary.arena.exercise()
