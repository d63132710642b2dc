"""Do forced tokens agree with the tokenizer's own split of the whole text? A replay, and the texts of the shared corpora.

Knows the reference data's layout (bfcl, maskbench); knows nothing of particular tokenizers.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentkit.errors import GrammarError
from agentkit.grammars import Grammar, Vocabulary


@dataclass
class Replay:
    """What a replay saw. tokens: of the whole text; forced: of them; wrong: (text so far, forced, wanted), as tokens' bytes."""

    tokens: int = 0
    forced: int = 0
    wrong: list[tuple[bytes, list[bytes], list[bytes]]] = field(default_factory=list)

    def __iadd__(self, other: Replay) -> Replay:
        self.tokens, self.forced, self.wrong = self.tokens + other.tokens, self.forced + other.forced, self.wrong + other.wrong
        return self


def replay(grammar: Grammar, vocabulary: Vocabulary, text: str) -> Replay:
    """Walks the tokenizer's split of `text`, asking at every token what is forced."""
    ids = vocabulary.encode_text(text)
    found = Replay(len(ids))
    matcher = grammar.matcher(vocabulary)
    ahead = 0  # end of the forced tokens so far
    for at, token in enumerate(ids):
        forced = matcher.forced_tokens()
        if forced != ids[at : at + len(forced)]:
            spelled = [[vocabulary.text_of(i) for i in part] for part in (forced, ids[at : at + len(forced)])]
            found.wrong.append((b"".join(map(vocabulary.text_of, ids[:at])), *spelled))
        found.forced += max(at + len(forced) - max(ahead, at), 0)
        ahead = max(ahead, at + len(forced))
        matcher.accept(token)
    assert matcher.forced_tokens() == []
    assert matcher.is_accepting
    return found


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def tool_calls(shared: Path, count: int) -> Iterator[tuple[Grammar, str]]:
    """Grammars of whole turns, and a right call of each, from bfcl."""
    with gzip.open(shared / "bfcl" / "open.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    for row in [row for row in rows if row.get("answers")][:count]:
        try:
            grammar = Grammar.from_tools(row["tools"], "required")
        except GrammarError:
            continue
        (name, wanted), *_ = row["answers"][0].items()
        tool = next(tool for tool in row["tools"] if tool["name"] == name)
        order = [key for key in tool["parameters"]["properties"] if wanted.get(key, [""])[0] != ""]
        yield grammar, f"<tool_call>\n{compact({'name': name, 'arguments': {key: wanted[key][0] for key in order}})}\n</tool_call>"


def instances(shared: Path, count: int) -> Iterator[tuple[Grammar, str]]:
    """Schemas and valid instances from maskbench, any order of keys."""
    with gzip.open(shared / "maskbench" / "open.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows[:: max(len(rows) // count, 1)]:
        try:
            grammar = Grammar.from_json_schema(row["schema"], key_order="any")
        except GrammarError:
            continue
        for test in row["tests"]:
            if test["valid"]:
                yield grammar, compact(test["instance"])
                break


def usable(grammar: Grammar, vocabulary: Vocabulary, text: str) -> bool:
    """Does the tokenizer spell `text` as it is (no normal form of it), and is it a spelling that the grammar takes?"""
    if b"".join(map(vocabulary.text_of, vocabulary.encode_text(text))) != text.encode():
        return False
    matcher = grammar.matcher(vocabulary)
    try:
        matcher.accept_bytes(text.encode())
    except GrammarError:
        return False
    return matcher.is_accepting
