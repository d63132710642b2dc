"""What `import agentkit` costs, and that names are where they should be."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "numba", "transformers", "triton", "httpx", "jinja2", "rich", "numpy", "tokenizers", "huggingface_hub")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


AGENT = """
from agentkit import Agent, RunContext, Tool, UsageLimits, tool

@tool
def f(x: int) -> int:
    "F."
    return x

Agent("smollm2-135m", tools=[f], output_type=list[int])
"""


@pytest.mark.parametrize("statement", ["import agentkit", AGENT], ids=["import agentkit", "an agent is made"])
def test_nothing_heavy_is_imported(statement: str) -> None:
    code = f"import sys\nbefore = set(sys.modules)\n{statement}"
    assert python(f"{code}\nprint(sorted(name for name in {HEAVY!r} if name in sys.modules and name not in before))") == "[]"


def test_import_takes_less_than_300_ms() -> None:
    """The best of five, each in a fresh process, with the interpreter's own start taken off."""
    code = "import time\nstart = time.perf_counter()\nimport agentkit\nprint(time.perf_counter() - start)"
    assert min(float(python(code)) for _ in range(5)) < 0.3


@pytest.mark.parametrize("first", ["import agentkit.tool", "from agentkit.tool import Tool", "import agentkit", "import agentkit.agent"])
def test_the_decorator_is_not_shadowed_by_its_module(first: str) -> None:
    """A submodule of the same name would otherwise take its place in the package."""
    assert python(f"{first}\nfrom agentkit import tool, Tool\nimport agentkit\nprint(tool.__name__, callable(tool), agentkit.tool is tool)") == "tool True True"


def test_every_public_name_is_there() -> None:
    import agentkit

    started = time.perf_counter()
    assert all(getattr(agentkit, name) is not None for name in agentkit.__all__)
    assert set(agentkit.__all__) <= set(dir(agentkit))
    assert time.perf_counter() - started < 60
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = agentkit.Nothing
