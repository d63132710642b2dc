"""Training heads from a model's own texts, comparing proposers, and the prompts for both; on a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from agentkit.engine import Engine
from agentkit.engine.models.progress import silent
from agentkit.engine.speculation.training import Plan
from agentkit.errors import InvalidOption
from agentkit.speculation.bench import Row, available, compare, pays, table
from agentkit.speculation.prompts import Prompt, made_up, read_prompts
from agentkit.speculation.train import ask, train
from tests.engine.models.synthetic import write_llama_gguf

PROMPTS = [Prompt(({"role": "user", "content": letter},)) for letter in "abcdefghijklmn"]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    write_llama_gguf(tmp_path / "model.gguf")
    with Engine(tmp_path / "model.gguf", speculation="off", cache_dir=tmp_path / "cache", threads=1, seed=1) as engine:
        yield engine


def test_heads_are_trained_found_by_name_and_trained_on_where_it_was_left(engine: Engine) -> None:
    plan = Plan(vocabulary=64, heads=2, epochs=1)
    asked = partial(ask, engine, PROMPTS[0], max_tokens=20)
    plain = asked()
    _, missing = available(engine, ["medusa", "ngram"])
    assert "agentkit train medusa" in missing["medusa"]
    first = train("medusa", engine, prompts=PROMPTS, texts=14, plan=plan, progress=silent)
    assert first.path.exists()
    assert first.texts >= 10
    assert len(first.accuracy) == 2
    texts = (first.path.parent / "texts.jsonl").read_text()
    (first.path.parent / "texts.jsonl").write_text(texts + '{"tokens": [1, 2')  # cut off
    second = train("eagle", engine, prompts=PROMPTS, texts=first.texts, plan=plan, progress=silent)
    assert (first.path.parent / "texts.jsonl").read_text() == texts
    assert second.path.parent == first.path.parent
    speculators, missing = available(engine, ["medusa", "eagle", "ngram"])
    assert not missing
    rows = compare(engine, [lambda engine: asked()], speculators)
    assert [row.setting for row in rows] == ["off", "medusa", "eagle", "ngram"]
    assert all(row.same and row.output == len(plain.token_ids) for row in rows)
    assert [cells[0] for cells in table(rows)] == ["speculation", "off", "medusa", "eagle", "ngram"]


def test_only_two_kinds_can_be_trained(engine: Engine) -> None:
    with pytest.raises(InvalidOption, match="choose 'medusa' or 'eagle'"):
        train("hydra", engine, progress=silent)


def test_prompts_are_made_up_the_same_way_each_time() -> None:
    prompts = list(islice(made_up(3), 64))
    assert prompts == list(islice(made_up(3), 64))
    assert prompts != list(islice(made_up(4), 64))
    assert all("{" not in p.messages[0]["content"] and len(p.tools) == 3 for p in prompts)
    assert len({p.messages[0]["content"] for p in prompts}) > 50


def test_prompts_are_read_from_a_file_and_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    tool = {"name": "f", "parameters": {"type": "object"}}
    path.write_text('"What is it?"\n\n' + json.dumps({"messages": [{"role": "user", "content": "x"}], "tools": [tool]}) + "\n")
    question, call = read_prompts(path)
    assert question.messages[0]["content"] == "What is it?"
    assert call.tools[0]["name"] == "f"
    for text, match in (("{", "line 1 is no JSON"), ('"a"\n[1]', "line 2 is neither"), ("", "holds none")):
        path.write_text(text)
        with pytest.raises(InvalidOption, match=match):
            read_prompts(path)
    with pytest.raises(InvalidOption, match="cannot be read"):
        read_prompts(tmp_path / "none")


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ({"off": (0, 1.0), "ngram": (9, 0.8), "eagle": (5, 0.9)}, "ngram"),
        ({"off": (0, 1.0), "ngram": (9, 0.8), "self": (0, 0.7)}, "ngram"),  # nothing of which drafts were kept: the machine was faster by chance
        ({"off": (0, 1.0), "ngram": (9, 0.99), "self": (0, 0.7)}, None),
        ({"off": (0, 1.0), "ngram": (9, 1.3)}, None),
        ({"off": (0, 1.0)}, None),
    ],
)
def test_which_setting_pays(rows: dict[str, tuple[int, float]], best: str | None) -> None:
    assert pays([Row(setting, accepted=accepted, seconds=seconds) for setting, (accepted, seconds) in rows.items()]) == best
