"""Kernels compiled together: circles of calls, one file for all processes, and what happens when that file is missing, cut short or not writable."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit.grammars import warmup
from agentkit.grammars.jit import COMPILED, KEPT_DAYS, KernelFolder

pytestmark = pytest.mark.skipif(not COMPILED, reason="nothing is compiled with NUMBA_DISABLE_JIT=1")

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from numba import types
from agentkit.grammars.jit import part
from agentkit.grammars.kernel_module import KernelModule

MODULE = KernelModule("test", Path(__file__).parent)
INTS, INT = types.int64[::1], types.int64

@part
def even(out, n):
    if n == 0:
        return 1
    return odd(out, n - 1)

@part
def odd(out, n):
    out[0] += 1
    return 0 if n == 0 else even(out, n - 1)

@MODULE.entry(INTS, INT)
def is_even(out, n):
    return even(out, n)

@MODULE.entry(INTS, INT)
def is_odd(out, n):
    return odd(out, n) + np.zeros(3, np.int64)[1]

compile_ = MODULE._compiled
def told():
    print("compiled")
    return compile_()
MODULE._compiled = told

out = np.zeros(1, np.int64)
print(is_even(out, 7), is_even(out, np.int32(8)), is_odd(out, 7), out[0])
try:
    is_even(out.astype(np.float32), 1)
except TypeError as error:
    print("refused")
"""


def run(tmp_path: Path) -> list[str]:
    source = tmp_path / "sources" / "program.py"
    source.parent.mkdir(exist_ok=True)
    source.write_text(PROGRAM)
    env = os.environ | {"AGENTKIT_CACHE": str(tmp_path / "cache")}
    return subprocess.run([sys.executable, source], env=env, check=True, capture_output=True, text=True).stdout.splitlines()


RESULTS = ["0 1 1 12", "refused"]


def test_compiled_once_and_loaded_by_other_processes(tmp_path: Path) -> None:
    assert run(tmp_path) == ["compiled", *RESULTS]
    assert run(tmp_path) == RESULTS
    (file,) = (tmp_path / "cache").rglob("*.bin")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # a disk that was full, or a crash
    assert run(tmp_path) == ["compiled", *RESULTS]
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert len(file.read_bytes()) > len(whole) // 2


def test_a_folder_that_cannot_be_written_to_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert run(tmp_path) == ["compiled", *RESULTS]


def test_folders_of_other_sources_go_when_nobody_has_used_them_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKIT_CACHE", str(tmp_path))
    (tmp_path / "source.py").write_text("")
    library = KernelFolder("own", tmp_path)
    old, recent, other = (library.folder.parent / name for name in ("own-0123456789abcdef", "else-0123456789abcdef", "no kernels"))
    long_ago = time.time() - (KEPT_DAYS + 1) * 24 * 3600
    for folder in (old, recent, other, library.folder):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        if folder != recent:
            os.utime(folder, (long_ago, long_ago))
    library.clear_stale()
    assert sorted(path.name for path in library.folder.parent.iterdir()) == sorted(path.name for path in (recent, other, library.folder))
    library.note_use()
    assert library.folder.stat().st_mtime > long_ago + 24 * 3600


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "print('done')"])
def test_compiling_beside_is_waited_for_and_may_fail(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    helpers: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(warmup, "_helpers", helpers)
    monkeypatch.setattr(warmup, "_ASIDE", program)
    monkeypatch.setattr(warmup, "kernels_cached", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    warmup.begin_compiling()
    warmup.begin_compiling()
    warmup.compile_kernels()
    assert [helper.returncode for helper in helpers] == [3 if "raise" in program else 0]


@pytest.mark.parametrize(("cores", "executable"), [(1, sys.executable), (2, "/opt/program/program"), (2, ""), (2, None)])
def test_nothing_is_compiled_beside_on_one_core_or_within_another_program(monkeypatch: pytest.MonkeyPatch, cores: int, executable: str | None) -> None:
    monkeypatch.setattr(warmup, "_helpers", [])
    monkeypatch.setattr(warmup, "kernels_cached", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(sys, "executable", executable)
    warmup.begin_compiling()
    assert warmup._helpers == []


BEGIN = '''
import os, sys
from agentkit.grammars import warmup
warmup._ASIDE = f"""
import os, time
while os.getppid() == {os.getpid()}:
    time.sleep(0.02)
open({sys.argv[1]!r}, 'w')
"""
warmup.kernels_cached = lambda: False
warmup.os.cpu_count = lambda: 2
warmup.begin_compiling()
'''


def test_what_is_compiled_beside_is_finished_when_the_program_ends_sooner(tmp_path: Path) -> None:
    done = tmp_path / "done"
    subprocess.run([sys.executable, "-c", BEGIN, done], check=True, timeout=60)
    for _ in range(600):
        if done.exists():
            return
        time.sleep(0.1)
    pytest.fail("the process beside was ended")
