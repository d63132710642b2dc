"""The cache of models: from what a user names to a folder that can be loaded.

Layout, below the cache's root (agentkit/cache_folder.py):

    models/<key>/             one model: a folder in Hugging Face layout with agentkit.json, and model.gguf if it was fetched
    models/.work-<key>-*/     work in progress; renamed to models/<key> as the very last step, or left to be cleared away
    locks/<key>.lock          held while a model is fetched or converted, so that two processes share one result

A folder under its final name is therefore always whole. What is named: a known short name, a folder, a *.gguf file, or a hub
repository. Knows nothing of how the files are downloaded (fetch.py) or converted (convert.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentkit.cache_folder import cache_root
from agentkit.engine.models.progress import Progress, progress_or_default
from agentkit.engine.models.registry import KNOWN_MODELS, KnownModel
from agentkit.errors import ModelNotFound, did_you_mean

__all__ = ["REPOSITORY", "ModelEntry", "Place", "list_models", "path", "pull", "remove", "resolve"]

FORMAT = 1  # of a converted folder; raised when conversion changes, which makes older folders be converted anew
_MANIFEST = "agentkit.json"
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ADVICE = f"pass one of {', '.join(KNOWN_MODELS)}, a folder with config.json, tokenizer.json and *.safetensors, a *.gguf file, or a hub repository org/name"
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Place:
    """Where a model lies: its name, the folder to load, and the GGUF file it was converted from (None: not from one)."""

    name: str
    folder: Path
    gguf: Path | None = None


@dataclass(frozen=True)
class ModelEntry:
    """One line of `agentkit models list`. bytes: size on disk, 0 where it is not in the cache; source: where it comes from."""

    name: str
    cached: bool
    bytes: int
    folder: Path | None
    source: str
    licence: str


@dataclass(frozen=True)
class _Manifest:
    """agentkit.json. folder: where the files really are, if not here (the hub's own cache); gguf: path of the source file."""

    format: int
    name: str
    source: str
    folder: str | None = None
    gguf: str | None = None


def resolve(spec: PathLike, *, cache_dir: PathLike | None = None, progress: Progress | None = None) -> Place:
    """The place of a model, fetched and converted first where needed.

    spec: a folder, a *.gguf file, a known short name or a hub repository "org/name". progress: see progress.py; None shows it on stderr.
    Raises ModelNotFound saying what was tried, TypeError for what is neither a name nor a path.
    """
    if not isinstance(spec, str | os.PathLike):
        raise TypeError(f"a model is a name, or the path of a folder or *.gguf file, not {type(spec).__name__}")
    text = os.fspath(spec)
    local = Path(text).expanduser()
    if text in KNOWN_MODELS:
        return _known(KNOWN_MODELS[text], cache_root(cache_dir), progress)
    if text.strip() and local.is_dir():
        return Place(local.name or text, local.absolute())
    if local.is_file():
        return _file(local, cache_root(cache_dir), progress)
    if REPOSITORY.fullmatch(text) and not text.endswith(".gguf"):
        return _repository(text, progress)
    if not text.strip() or text.endswith(".gguf") or re.match(r"[~./\\]|.*[/\\].*[/\\]", text):
        kind = "file" if text.endswith(".gguf") else "file or folder"
        raise _not_found(text, [f"there is no {kind} {local.absolute()}" if text.strip() else "the name is empty"], "check the path, or " + _ADVICE)
    raise _not_found(text, ["it is no folder and no file here", f"it is none of the known names: {', '.join(KNOWN_MODELS)}"])


def list_models(cache_dir: PathLike | None = None) -> list[ModelEntry]:
    """Known models, cached or not, then converted GGUF files that are in the cache."""
    root = cache_root(cache_dir)
    entries = []
    for model in KNOWN_MODELS.values():
        place = _cached(root, model.name)
        where = _source(root, model.name) if place else f"hub {model.hub}, or package index {model.wheels[0].project}"
        entries.append(ModelEntry(model.name, place is not None, _size(root, model.name), place.folder if place else None, where, model.licence))
    for folder in sorted((root / "models").glob("gguf-*")):
        place = _cached(root, folder.name)
        if place is not None:
            entries.append(ModelEntry(folder.name, True, _size(root, folder.name), folder, _source(root, folder.name), ""))
    return entries


def pull(name: str, progress: Progress | None = None, *, cache_dir: PathLike | None = None) -> Path:
    """Fetches a model into the cache unless it is there; its folder. A hub repository is brought up to date. Raises ModelNotFound."""
    if name not in KNOWN_MODELS and not Path(name).expanduser().exists() and REPOSITORY.fullmatch(name):
        return _repository(name, progress, update=True).folder
    return resolve(name, cache_dir=cache_dir, progress=progress).folder


def path(name: str, *, cache_dir: PathLike | None = None) -> Path:
    """The folder of a model in the cache; never fetches. Raises ModelNotFound where it is not there."""
    place = _cached(cache_root(cache_dir), name)
    if place is None and name not in KNOWN_MODELS and REPOSITORY.fullmatch(name):
        from agentkit.engine.models.fetch import local_snapshot

        folder = local_snapshot(name)
        place = Place(name, folder) if folder else None
    if place is None:
        raise _not_found(name, [f"{cache_root(cache_dir)} does not hold it"], f"fetch it with: agentkit models pull {name}")
    return place.folder


def remove(name: str, *, cache_dir: PathLike | None = None) -> None:
    """Removes a model from the cache (never a folder or file of the user's, and not the hub's own cache). Raises ModelNotFound."""
    root = cache_root(cache_dir)
    folder = _folder(root, name)
    if not _is_key(name) or not folder.is_dir():
        raise _not_found(name, [f"{root} does not hold it"], "`agentkit models list` shows what is there; hub repositories are removed with `hf cache rm`")
    with _locked(root, name, lambda *_: None):
        _discard(folder)
        _clear_work(root, name)


def _known(model: KnownModel, root: Path, progress: Progress | None) -> Place:
    found = _cached(root, model.name)
    if found is not None:
        return found
    with progress_or_default(progress) as show, _locked(root, model.name, show):
        return _cached(root, model.name) or _fetch_known(model, root, show)


def _fetch_known(model: KnownModel, root: Path, progress: Progress) -> Place:
    """From the hub, else from the package index. The lock is held."""
    from agentkit.engine.models.convert import convert_gguf
    from agentkit.engine.models.fetch import FetchFailed, fetch_gguf_from_index, hub_unreachable, local_snapshot, snapshot

    tried = []
    progress(f"{model.name}: looking for the model hub", 0, None)
    problem = hub_unreachable()
    try:
        folder = local_snapshot(model.hub) if problem else snapshot(model.hub, progress)
        if folder is not None:
            return _install(root, _Manifest(FORMAT, model.name, f"hub {model.hub}", folder=str(folder)), lambda work: None)
    except FetchFailed as error:
        problem = str(error)
    tried.append(f"the model hub: {problem}")
    progress(f"{problem}; taking {model.name} from the package index", 0, None)

    def build(work: Path) -> None:
        convert_gguf(fetch_gguf_from_index(model, work, progress), work, progress)

    try:
        source = f"package index {model.wheels[0].project} {model.wheels[0].version}"
        place = _install(root, _Manifest(FORMAT, model.name, source, gguf="model.gguf"), build)
    except FetchFailed as error:
        advice = "check the network and the index settings of pip, or pass a model's folder or *.gguf file"
        raise _not_found(model.name, [*tried, f"the package index: {error}"], advice) from error
    progress(f"{model.name} is ready (licence: {model.licence})", 0, None)
    return place


def _file(file: Path, root: Path, progress: Progress | None) -> Place:
    """A user's own GGUF file: converted once, keyed by path, size and time of change. The file itself stays where it is."""
    from agentkit.engine.models.convert import convert_gguf

    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise _not_found(str(file), ["it is a file, but not a GGUF file"], "pass a *.gguf file, or the folder that holds config.json and *.safetensors")
    status, absolute = file.stat(), file.resolve()
    digest = hashlib.sha256(f"{absolute}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()[:12]
    key = f"gguf-{re.sub(r'[^A-Za-z0-9._-]', '_', file.stem)}-{digest}"
    found = _cached(root, key)
    if found is None:
        with progress_or_default(progress) as show, _locked(root, key, show):
            manifest = _Manifest(FORMAT, file.stem, str(absolute), gguf=str(absolute))
            found = _cached(root, key) or _install(root, manifest, lambda work: convert_gguf(absolute, work, show), key)
    return Place(file.stem, found.folder, absolute)


def _repository(name: str, progress: Progress | None, *, update: bool = False) -> Place:
    """A hub repository: the copy in the hub's own cache if there is one, so that a start asks no network; else downloaded."""
    from agentkit.engine.models.fetch import FetchFailed, hub_unreachable, local_snapshot, snapshot

    folder = None if update else local_snapshot(name)
    if folder is None:
        if problem := hub_unreachable():
            raise _not_found(name, ["it is no folder here", "the hub's cache on this machine does not hold it", f"the model hub: {problem}"])
        try:
            with progress_or_default(progress) as show:
                folder = snapshot(name, show)
        except FetchFailed as error:
            raise _not_found(name, ["it is no folder here", f"the model hub: {error}"]) from error
    return Place(name, folder)


def _install(root: Path, manifest: _Manifest, build: Callable[[Path], None], key: str | None = None) -> Place:
    """Builds models/<key> in a work folder and renames it into place as the last step. The lock is held, so old work is dead work."""
    key = key or manifest.name
    models = root / "models"
    models.mkdir(parents=True, exist_ok=True)
    _clear_work(root, key)
    work = Path(tempfile.mkdtemp(prefix=f".work-{key}-", dir=models))
    try:
        build(work)
        (work / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=2), encoding="utf-8")
        work.chmod(0o755)
        final = _folder(root, key)
        if final.exists():
            _discard(final)
        work.rename(final)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    place = _cached(root, key)
    if place is None:
        raise ModelNotFound(f"{final} vanished while it was being set up; try again")
    return place


def _cached(root: Path, key: str) -> Place | None:
    """The model under this key if it is whole, of today's format, and its files are still there."""
    if not _is_key(key):
        return None
    folder = _folder(root, key)
    fields = _manifest(folder)
    if fields.get("format") != FORMAT:
        return None
    files = Path(fields["folder"]) if fields.get("folder") else folder
    if not (files / "config.json").is_file():
        return None
    gguf = folder / fields["gguf"] if fields.get("gguf") else None
    return Place(str(fields["name"]), files, gguf if gguf is not None and gguf.is_file() else None)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        fields = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _source(root: Path, key: str) -> str:
    return str(_manifest(_folder(root, key)).get("source", ""))


def _folder(root: Path, key: str) -> Path:
    return root / "models" / key


def _is_key(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) is not None


def _size(root: Path, key: str) -> int:
    return sum(file.stat().st_size for file in _folder(root, key).rglob("*") if file.is_file())


def _discard(folder: Path) -> None:
    """Removes a model so that at no time a part of it lies under its final name."""
    grave = Path(tempfile.mkdtemp(prefix=f".work-{folder.name}-", dir=folder.parent))
    folder.rename(grave / "old")
    shutil.rmtree(grave)


def _clear_work(root: Path, key: str) -> None:
    """What an interrupted process left behind. mkdtemp's eight characters follow the key, so no other key is touched."""
    for left in (root / "models").glob(f".work-{key}-????????"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(root: Path, key: str, progress: Progress | Callable[..., None]) -> Iterator[None]:
    from filelock import FileLock, Timeout

    folder = root / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{key}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that is fetching {key}", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _not_found(name: str, tried: list[str], advice: str = "") -> ModelNotFound:
    return ModelNotFound(f"no model {name!r}: {'; '.join(tried)}.{did_you_mean(name, KNOWN_MODELS)} What to do: {advice or _ADVICE}")
