"""Make the project's virtual environment and install agentkit into it: setup_env.py base|dev VENV (through .ci/setup).

Idempotent, and quick when nothing is left to do: a stamp in the environment holds a digest of pyproject.toml, the Python
version and the project's folder. Standard library only. Reads the environment variables

    TORCH        requirement for torch (default torch==2.13.0; without it, any torch >= 2.11 that is there is kept)
    TORCH_INDEX  index to take torch from; "default" is pip's own without a question; unset: the CPU index of the PyTorch
                 project if pip would take a CUDA build and there is no NVIDIA GPU

Knows nothing of what agentkit does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_TORCH = "torch==2.13.0"
OLDEST_TORCH = (2, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"setup: {text}")


def stamp_key() -> str:
    parts = [(ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def torch_version() -> str | None:
    """Version of the torch that this Python would import, or None; does not import it (that takes seconds)."""
    if importlib.util.find_spec("torch") is None:
        return None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("torch")
    return None


def new_enough(version: str | None) -> bool:
    if version is None:
        return False
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= OLDEST_TORCH


def torch_suits(wanted: str) -> bool:
    """Whether the torch that is there will do: any new enough one, or the one that TORCH asks for."""
    version = torch_version()
    if not new_enough(version):
        return False
    if not wanted:
        return True
    name, _, pinned = wanted.partition("==")
    if name.strip() != "torch" or not pinned:
        return False  # a range, path or address: pip decides
    return version in (pinned.strip(), pinned.strip() + "+cpu") or version.partition("+")[0] == pinned.strip()


def create(venv: Path) -> None:
    """Make the environment; where the Python that runs this has a torch, the environment sees it and nothing is downloaded again."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"{sys.executable} lacks the module {missing[0]!r}. On Debian and Ubuntu: apt install python3-venv. Or name another Python: make PYTHON=...")
    say(f"creating {venv} with Python {sys.version.split()[0]} ({sys.executable})")
    done = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False)
    if done.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        fail(f"could not create {venv} (see above)")
    if new_enough(torch_version()):
        folder = str(importlib.metadata.distribution("torch").locate_file(""))
        site = next(venv.glob("lib/python3*/site-packages"))
        (site / "_reused_environment.pth").write_text(folder + "\n", encoding="utf-8")
        say(f"packages in {folder} are reused (torch {torch_version()} is there)")


def pip(*arguments: str, hint: str, quiet: bool = True) -> None:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *(["--quiet"] if quiet else []), *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        fail(f"pip failed (see above). {hint}")


def ensure_pip() -> None:
    if importlib.util.find_spec("pip") is None and subprocess.run([sys.executable, "-m", "ensurepip", "--upgrade"], check=False).returncode:
        fail(f"{sys.prefix} has no pip, and ensurepip cannot add it. Remove the environment, or install pip into it.")


def has_nvidia_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU" in listing.stdout


def pip_would_take_cuda(requirement: str) -> bool:
    """Ask pip (a dry run: metadata only) whether it would install a CUDA build."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        pip(
            *["--dry-run", "--no-deps", "--ignore-installed", "--report", str(report), requirement],
            hint=f"Is a package index reachable, and does it have {requirement} for Python {sys.version.split()[0]}? TORCH=... names another.",
        )
        metadata = json.loads(report.read_text(encoding="utf-8"))["install"][0]["metadata"]
    from pip._vendor.packaging.requirements import Requirement

    needs = [Requirement(line) for line in metadata.get("requires_dist", [])]
    needed = [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return "+cu" in metadata["version"] or any(name.startswith(("nvidia-", "cuda-")) for name in needed)


def install_torch(wanted: str, index: str) -> None:
    requirement = wanted or DEFAULT_TORCH
    if not index and sys.platform == "linux" and not has_nvidia_gpu() and pip_would_take_cuda(requirement):
        say("pip would take a CUDA build of torch, and there is no NVIDIA GPU here: taking the CPU build of the PyTorch project instead")
        index = CPU_INDEX
    source = f" from {index}" if index not in ("", "default") else ""
    say(f"installing {requirement}{source} (TORCH=... and TORCH_INDEX=... change this)")
    pip(
        *(["--index-url", index] if source else []),
        requirement,
        quiet=False,
        hint=f"Could not get {requirement}{source}. Is it reachable?\n"
        "  TORCH_INDEX=URL takes torch from another index, TORCH_INDEX=default from pip's own, whatever build it has;\n"
        "  TORCH=/path/to/torch.whl takes a file; a torch that is already in VENV=... or in the active environment is kept.",
    )
    importlib.invalidate_caches()
    if not new_enough(torch_version()):
        fail(f"torch {torch_version()} is installed, but agentkit needs 2.11 or newer: set TORCH accordingly")


def install(level: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder, "torch.txt")  # whatever else is installed must leave torch as it is
        pinned.write_text(f"torch=={torch_version()}\n", encoding="utf-8")
        say(f"installing agentkit and its dependencies{' for development' if level == 'dev' else ''} into {sys.prefix}")
        pip(
            *["--constraint", str(pinned), "--editable", ".[dev]" if level == "dev" else "."],
            hint="Is a package index (PyPI, or the mirror in your pip configuration) reachable? Nothing else is fetched.",
        )
    put_finder_first()


# Run at every start of Python: without it, a folder named agentkit where a script runs (such as this clone, seen from its parent)
# would be taken for the package, since setuptools' finder of editable installs comes last.
FINDER_FIRST = 'import sys; sys.meta_path.sort(key=lambda f: not getattr(f, "__module__", "").startswith("__editable___agentkit"))'


def put_finder_first() -> None:
    site = Path(sysconfig.get_path("purelib"))
    (site / "zz_agentkit_finder_first.pth").write_text(FINDER_FIRST + "\n", encoding="utf-8")


def set_up(level: str) -> None:
    wanted, index = os.environ.get("TORCH", ""), os.environ.get("TORCH_INDEX", "")
    stamp = Path(sys.prefix, ".agentkit-setup.json")
    done = json.loads(stamp.read_text(encoding="utf-8")) if stamp.exists() else {}
    complete = done.get("key") == stamp_key() and level in done.get("levels", [])
    if complete and torch_suits(wanted):
        return
    ensure_pip()
    if torch_suits(wanted):
        say(f"torch {torch_version()} is there and is kept")
    else:
        install_torch(wanted, index)
    install(level)
    levels = ["base", "dev"] if level == "dev" else ["base"]
    temporary = stamp.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"key": stamp_key(), "levels": levels}), encoding="utf-8")
    temporary.replace(stamp)
    say("done")


def main(level: str, venv: Path) -> None:
    if Path(sys.prefix).resolve() != venv.resolve():
        create(venv)
        python = str(venv / "bin" / "python")
        os.execv(python, [python, str(Path(__file__).resolve()), level, str(venv)])
    import fcntl

    with Path(sys.prefix, ".agentkit-setup.lock").open("w") as lock:  # two makes at once take turns
        fcntl.flock(lock, fcntl.LOCK_EX)
        set_up(level)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("base", "dev"):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]).absolute())
