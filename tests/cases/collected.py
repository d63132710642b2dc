"""Which tests pytest finds in given files, with their marks; asked of a process of its own.

Input: paths of test files. Run as a program it prints what it finds as JSON. Knows nothing of the bank or the manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Found:
    """One test. marks: names of its marks; behaviour: the (case id, statement) that it is marked as the test of."""

    node_id: str
    marks: frozenset[str]
    behaviour: tuple[str, str] | None = None

    @property
    def runs_everywhere(self) -> bool:
        """Is it an ordinary test, which neither waits for an option or a device nor is expected to fail?"""
        return not self.marks & {"skip", "skipif", "xfail", "slow", "gpu"}


def collect(files: Iterable[str]) -> dict[str, Found]:
    """Node id -> test.

    Raises:
        RuntimeError: pytest cannot collect the files.
    """
    done = subprocess.run(
        [sys.executable, __file__, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    if done.returncode:
        raise RuntimeError(f"pytest cannot collect these files ({done.returncode}):\n{done.stderr[-4000:]}")
    rows = json.loads(done.stdout)
    return {row["node_id"]: Found(row["node_id"], frozenset(row["marks"]), row["behaviour"] and tuple(row["behaviour"])) for row in rows}


class _Listener:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
            self.rows.append({"node_id": item.nodeid, "marks": sorted({m.name for m in item.iter_markers()}), "behaviour": given.get("behaviour_statement")})


def _main(files: list[str]) -> int:
    listener = _Listener()
    with contextlib.redirect_stdout(sys.stderr):
        # --slow: marks tell which tests are slow; without it those would be marked as skipped as well
        code = pytest.main(["--collect-only", "--quiet", "--slow", "-p", "no:cacheprovider", *files], plugins=[listener])
    sys.stdout.write(json.dumps(listener.rows))
    return int(code)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
