"""The engine's examples, on a tiny model."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from agentkit.engine import H2O, Engine
from tests.engine.adapters.native import native
from tests.engine.loaded import loaded_model


def example(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with Engine(loaded_model(tmp_path / "model"), threads=1) as engine:
        yield engine


async def test_batch_extraction_goes_on_where_it_stopped(engine: Engine, tmp_path: Path, root: Path) -> None:
    module = example(root, "batch_extraction")
    texts, path = module.records(6), tmp_path / "people.jsonl"
    assert len(set(texts)) == 6
    await module.extract(engine, texts[:3], path)
    before = path.read_text()
    path.write_text(before + '{"record": 3, "text": "cut o')
    await module.extract(engine, texts, path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.read_text().startswith(before)
    assert sorted(line["record"] for line in lines) == list(range(6))
    assert all(module.Person.model_validate(line["person"]) for line in lines)


def test_speculation_paints_guesses_and_compares(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = example(root, "speculation")
    monkeypatch.setattr(module, "SCHEMA", {"type": "array", "items": {"const": "ab, ab, ab, ab"}, "minItems": 3, "maxItems": 3})
    with Engine(loaded_model(tmp_path / "model"), threads=1, speculation="off") as engine:
        module.show(engine, ["ngram", "lookahead", "medusa"], 120, plain=True)
    out = capsys.readouterr().out
    assert out.count('ab, ab"') >= 2
    assert "tokens per forward" in out
    assert "medusa: " in out  # why there are no heads


def test_prefix_caching_measures_and_draws(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = example(root, "prefix_caching")
    monkeypatch.setattr(module, "QUESTIONS", module.QUESTIONS[:2])
    monkeypatch.setattr(module, "SYSTEM", module.SYSTEM[:3000])
    with Engine(loaded_model(tmp_path / "model"), threads=1) as engine:
        cold, warm = module.measure(engine)
        assert engine.stats().pinned_pages in (0, 3001 // 32 + 1)  # released within a step
    assert len(cold) == len(warm) == 2
    module.draw(cold, warm)
    assert capsys.readouterr().out.count("█") > 60


def test_kv_compression_compares_and_streams(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = example(root, "kv_compression")
    loaded = loaded_model(tmp_path / "model", context=512)
    monkeypatch.setattr(module, "topics", {"a": "A text about windows. " * 40, "b": "And one about sinks. " * 40})
    monkeypatch.setattr(module, "open_engine", lambda model, kv: Engine(loaded, kv=kv, prefix_caching=not isinstance(kv, H2O), threads=1))
    module.compare("tiny", 230, 128)
    lines = capsys.readouterr().out.splitlines()[3:]
    names, sizes = [line[:48].strip() for line in lines], {line[:48].strip(): float(line[48:57]) for line in lines}
    assert names == [str(kv) for kv in module.policies(128)]
    assert all("yes" in line or "no" in line for line in lines)
    assert sizes["fp32"] >= sizes["fp16"]
    curves = module.stream("tiny", 1000, 128)
    assert [len(points) for points in curves.values()] == [module.POINTS] * 2
    with module.open_engine("tiny", "auto") as engine:
        page = engine.stats().page_bytes
    assert all(size <= 6 * page for points in curves.values() for _, _, size in points)  # sinks, and 128 positions wherever they begin
    assert capsys.readouterr().out.count("█") > 100


def test_flash_attention_compares_and_says_what_does_not_fit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, cpu = example(root, "flash_attention"), torch.device("cpu")
    monkeypatch.setattr(module, "free_bytes", lambda device: module.needed(100, 3, 4))
    found = module.compare([70, 130], 3, 1, 16, cpu)
    assert all(figures.error < 1e-5 for length in (70, 130) for figures in found[length].values() if isinstance(figures, module.Figures))
    assert found[130]["standard"] == module.needed(130, 3, 4)
    lines = module.table(found)
    assert len(lines) == 7
    assert "does not fit: it needs 0.0 GB" in lines[4]
    assert "x" in lines[2]


async def test_adapters_are_trained_written_and_chosen(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, loaded = example(root, "adapters"), native(tmp_path / "model")
    module.write(module.train(loaded, 48), tmp_path / "pirate")
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 1
    with Engine(loaded, adapters={"pirate": tmp_path / "pirate"}, weights="fp32", threads=1) as engine:
        await module.compare(engine)
    base, none, half, whole = capsys.readouterr().out.split("\n  ")[1:]
    assert base.removeprefix("base model").strip() == none.removeprefix("adapter x 0.0").strip()
    assert len({none[13:], half[13:], whole[13:]}) == 3
