"""Compiled grammars and tries on disk: found again by other processes, bounded, and never believed when damaged."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkit.errors import UnsatisfiableSchema
from agentkit.grammars import Grammar, Vocabulary, clear_caches, compiled, configure, disk
from agentkit.grammars import vocabulary as vocabulary_module
from agentkit.grammars.disk import DiskCache
from agentkit.grammars.frontends.json_schema import compile as json_schema_compile
from agentkit.grammars.settings import settings

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"név": {"type": "string", "maxLength": 9, "title": "name"}, "n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [{"name": "send", "parameters": SCHEMA}]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A disk cache that is in use, with nothing in memory."""
    folder = tmp_path / "new" / "grammars"
    clear_caches()
    configure(disk_cache=folder)
    yield folder
    configure(disk_cache=None, disk_bytes=128 << 20)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.bin"))


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The schemas that have really been compiled."""
    seen: list[Any] = []
    real = json_schema_compile.schema_node

    def counted(builder: Any, schema: Any, **options: Any) -> Any:
        seen.append(schema)
        return real(builder, schema, **options)

    monkeypatch.setattr(json_schema_compile, "schema_node", counted)
    return seen


MAKERS = {
    "schema": lambda: Grammar.from_json_schema(SCHEMA, whitespace="flexible", key_order="any"),
    "pydantic": lambda: Grammar.from_pydantic(dict[str, int]),
    "regex": lambda: Grammar.from_regex(r"\d{3}-[α-ω]+"),
    "lark": lambda: Grammar.from_lark('start: "a" start | "b"'),
    "gbnf": lambda: Grammar.from_gbnf('root ::= "x" root | "y"'),
    "tools": lambda: Grammar.from_tools(TOOLS, "required", parallel=3, output_schema={"type": "integer"}),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_read_back_is_what_was_compiled(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = MAKERS[kind]()
    assert len(entries(folder)) == 1
    clear_caches()
    monkeypatch.setattr(compiled, "_packed", None)  # a second compilation would fail here
    again = MAKERS[kind]()
    assert again.program.digest == fresh.program.digest
    for part in ("code", "starts", "blob", "rules"):
        np.testing.assert_array_equal(getattr(again.program, part), getattr(fresh.program, part), strict=True)
    assert (again.program.root, again.program.specials) == (fresh.program.root, fresh.program.specials)
    assert list(again.report()) == list(fresh.report())
    assert str(again.report()) == str(fresh.report())


def test_every_option_and_the_order_of_keys_make_another_entry(folder: Path) -> None:
    Grammar.from_json_schema(SCHEMA)
    Grammar.from_json_schema(SCHEMA, whitespace="flexible")
    Grammar.from_json_schema(SCHEMA, key_order="any")
    Grammar.from_json_schema({**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))})
    Grammar.from_json_schema({"const": 1})
    Grammar.from_json_schema({"const": True})
    Grammar.from_json_schema({"const": 1.0})
    Grammar.from_regex("a", flags=2)
    Grammar.from_regex("a")
    assert len(entries(folder)) == 9


def test_an_equal_source_is_compiled_once_in_memory_and_once_on_disk(folder: Path, compiles: list[Any]) -> None:
    for _ in range(2):
        Grammar.from_json_schema(SCHEMA)
    clear_caches()
    Grammar.from_json_schema(SCHEMA)
    assert len(compiles) == 1
    configure(disk_cache=None)
    clear_caches()
    Grammar.from_json_schema(SCHEMA)
    assert len(compiles) == 2


def test_a_source_that_changes_after_the_call_is_another_source(folder: Path) -> None:
    schema = {"enum": ["a"]}
    before = Grammar.from_json_schema(schema)
    schema["enum"].append("b")
    assert Grammar.from_json_schema(schema).program.digest != before.program.digest


def test_what_is_not_plain_data_is_compiled_and_not_kept(folder: Path, compiles: list[Any]) -> None:
    class Odd(dict):  # type: ignore[type-arg]
        """A dict that need not be what it seems."""

    for _ in range(2):
        Grammar.from_json_schema(Odd(type="integer"))
    assert len(compiles) == 2
    assert not folder.exists()


def test_refusals_are_not_kept(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(UnsatisfiableSchema):
            Grammar.from_regex("[^\\s\\S]")
    assert not folder.exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "longer", "flipped", "another entry", "folder", "link", "pipe", "foreign"])
def test_a_damaged_entry_is_compiled_again(folder: Path, compiles: list[Any], damage: str, tmp_path: Path) -> None:
    good = Grammar.from_json_schema(SCHEMA)
    (entry,) = entries(folder)
    data = entry.read_bytes()
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        entry.symlink_to(tmp_path / "elsewhere")
    elif damage == "pipe":
        os.mkfifo(entry)
    elif damage == "another entry":
        Grammar.from_regex("other")
        entries(folder)[0].rename(entry)
    else:
        entry.write_bytes(
            {"empty": b"", "cut": data[:-1], "longer": data + b"\0", "flipped": data[:-9] + bytes([data[-9] ^ 4]) + data[-8:], "foreign": b"PK\3\4" * 99}[
                damage
            ]
        )
    clear_caches()
    again = Grammar.from_json_schema(SCHEMA)
    assert len(compiles) == 2
    assert again.program.digest == good.program.digest
    if damage != "folder":
        assert entry.read_bytes() == data
        assert not entry.is_symlink()


def test_no_flipped_bit_is_believed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put(b"key", b"value")
    (entry,) = entries(tmp_path)
    data = entry.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        entry.write_bytes(flipped)
        assert cache.get(b"key") is None
        assert not entry.exists()
    entry.write_bytes(data)
    assert cache.get(b"key") == b"value"


@pytest.mark.parametrize(("old", "new"), [(b"abc", b"abd"), (b'"sizes"', b'"sises"'), (b'"specials": []', b'"specials": 71'), (b'"root": ', b'"root":9')])
def test_a_well_formed_file_with_another_program_is_refused(old: bytes, new: bytes) -> None:
    data = compiled._packed(Grammar.from_regex("abc").program, None)
    assert compiled._unpacked(data) is not None
    assert data.count(old) == 1
    assert compiled._unpacked(data.replace(old, new)) is None


@pytest.mark.parametrize("cut", [lambda data: b"", lambda data: data[:3], lambda data: data[:-1], lambda data: data + b"0", lambda data: data[4:]])
def test_a_file_of_another_form_is_refused(cut: Callable[[bytes], bytes]) -> None:
    assert compiled._unpacked(cut(compiled._packed(Grammar.from_regex("abc").program, None))) is None


def test_the_folder_stays_below_its_bound_and_keeps_what_is_used(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 64_000)
    (tmp_path / "notes.txt").write_text("not ours")
    cache.put(b"used", b"u" * 1000)
    for number in range(300):
        cache.put(b"%d" % number, random.Random(number).randbytes(900))
        (path,) = [entry for entry in entries(tmp_path) if entry == cache._path(b"used")]
        assert cache.get(b"used") == b"u" * 1000
        os.utime(path, ns=(time.time_ns() + number, time.time_ns() + number))
        assert cache.nbytes <= 64_000
    assert cache.nbytes > 40_000
    assert cache.get(b"0") is None
    assert cache.get(b"299") is not None
    assert (tmp_path / "notes.txt").exists()


def test_one_value_does_not_push_out_all_others(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10_000)
    cache.put(b"small", b"s")
    cache.put(b"huge", bytes(9_000))
    assert cache.get(b"huge") is None
    assert cache.get(b"small") == b"s"


def test_what_dead_processes_left_is_swept(tmp_path: Path) -> None:
    old, new = tmp_path / ".unfinished-old", tmp_path / ".unfinished-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    DiskCache(tmp_path, 1 << 20).put(b"k", b"v")
    assert not old.exists()
    assert new.exists()


def test_a_folder_that_cannot_be_made_is_an_empty_cache(tmp_path: Path, compiles: list[Any]) -> None:
    (tmp_path / "file").write_text("in the way")
    try:
        configure(disk_cache=tmp_path / "file" / "grammars")
        clear_caches()
        Grammar.from_json_schema(SCHEMA)
        assert compiles == [SCHEMA]
        assert settings.disk is not None
        assert settings.disk.nbytes == 0
    finally:
        configure(disk_cache=None)


@pytest.mark.parametrize("failing", ["mkstemp", "replace", "write"])
def test_a_full_or_read_only_disk_is_no_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = DiskCache(tmp_path, 1 << 20)
    if failing == "write":
        monkeypatch.setattr("agentkit.grammars.disk.open", refuse, raising=False)
    else:
        monkeypatch.setattr("tempfile.mkstemp" if failing == "mkstemp" else "os.replace", refuse)
    cache.put(b"k", b"v")
    monkeypatch.undo()
    assert cache.get(b"k") is None
    assert list(tmp_path.iterdir()) == []


WRITE_AND_READ = """
import importlib.util, pathlib, random, sys
source, folder, seed = sys.argv[1:]
spec = importlib.util.spec_from_file_location("disk", source)  # alone: importing the package loads numba, which takes a while
disk = importlib.util.module_from_spec(spec)
spec.loader.exec_module(disk)
cache, choose = disk.DiskCache(pathlib.Path(folder), 40_000), random.Random(int(seed))
for _ in range(400):
    number = choose.randrange(60)
    value = random.Random(number).randbytes(1000 + number)
    if choose.random() < 0.5:
        cache.put(b"%d" % number, value)
    else:
        assert cache.get(b"%d" % number) in (None, value)
"""


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_AND_READ, str(disk.__file__), str(tmp_path)]
    running = [subprocess.Popen([*command, str(seed)]) for seed in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert 0 < DiskCache(tmp_path, 40_000).nbytes <= 40_000 + 3 * 40_000 // 16
    assert not list(tmp_path.glob(".unfinished-*"))


def test_a_vocabulary_is_read_back_and_masks_are_the_same(folder: Path) -> None:
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    tokens += [f"{number:x}".encode() for number in range(16, 1100)] + [None, b""]
    names = {"<end>": len(tokens) - 2}

    def masks() -> list[np.ndarray]:
        vocabulary = Vocabulary(tokens, [0], 1400, special_tokens=names)
        vocabulary.special_symbol("<end>")
        matcher = Grammar.from_json_schema(SCHEMA).matcher(vocabulary)
        matcher.accept_bytes(b'{"n":12')
        return [vocabulary.array, np.array(matcher.mask())]

    fresh = masks()
    count = len(entries(folder))
    clear_caches()
    for one, other in zip(masks(), fresh, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert len(entries(folder)) == count == 2
    Vocabulary(tokens, [1], 1400, special_tokens=names)
    Vocabulary(tokens, [0], 1401, special_tokens=names)
    Vocabulary([*tokens[:-2], b"", None], [0], 1400, special_tokens=names)
    Vocabulary(tokens, [0], 1400)
    assert len(entries(folder)) == count + 4


def test_common_rows_are_read_back_and_not_walked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[bytes | None] = [None, *(bytes([byte]) for byte in range(256)), *(f"{number:x}".encode() for number in range(16, 5000))]
    texts = [b'{"n":12', '{"név":"x'.encode(), b'{"n":-']

    def masks() -> list[np.ndarray]:
        vocabulary = Vocabulary(tokens, [0])
        matcher = Grammar.from_json_schema(SCHEMA, key_order="any").matcher(vocabulary)
        found = [matcher.mask().copy()]
        for text in texts:
            matcher.accept_bytes(text)
            found.append(matcher.mask().copy())
            matcher.rollback()
        return found

    def walked(vocabulary: Vocabulary) -> Any:
        calls.append(vocabulary)
        return real(vocabulary)

    real, calls = vocabulary_module.common_arena, []
    monkeypatch.setattr(vocabulary_module, "common_arena", walked)
    configure(disk_cache=None)
    alone = masks()

    def check(times: int) -> None:
        clear_caches()
        for one, other in zip(masks(), alone, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
        assert len(calls) == times
        assert len(entries(folder)) == 3  # the grammar, the trie, the common rows

    configure(disk_cache=folder)
    check(2)
    check(2)
    common = max(entries(folder), key=lambda path: path.stat().st_size)
    data = bytearray(common.read_bytes())
    data[len(data) // 2] ^= 1
    common.write_bytes(data)
    check(3)
    check(3)


def test_configure_leaves_what_is_not_given(folder: Path) -> None:
    configure(bank_bytes=settings.bank_bytes)
    assert settings.disk is not None
    assert settings.disk.folder == folder
    configure(disk_bytes=1 << 20)
    assert (settings.disk.folder, settings.disk.max_bytes) == (folder, 1 << 20)
    settings.suggest_disk(folder / "of an engine")
    assert settings.disk.folder == folder
    with pytest.raises(ValueError, match="disk_bytes must be a positive integer"):
        configure(disk_bytes=0)
