"""How often a device that follows grammars by tables would have to ask the host, over real schemas and the texts that belong to them.

    AGENTKIT_SHARED=../shared python tests/bench/device_misses.py TOKENIZER [--schemas 40]

No GPU and no model: each text is fed token by token to the host's walk over tables as they were before the token, with what the engine
prepares between two steps. Counted are tokens that the grammar does not force. A state missed: no row leads there. A mask missed: the
place has no row, so that the device builds it, if it has all heads for that. Objects are closed where the schema leaves it open, as in tools.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentkit.engine.device.decoding import AHEAD, EXPANDED
from agentkit.errors import GrammarError
from agentkit.grammars import Grammar, Vocabulary
from agentkit.grammars.ahead import Ahead
from agentkit.grammars.device import DEAD, Pushdown, token_symbols
from agentkit.grammars.place import Place


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(part) for key, part in schema.items()}
    return {"additionalProperties": False, **parts} if isinstance(parts.get("properties"), dict) else parts


def device_follow(host: Pushdown, place: Place, symbols: tuple[int, ...]) -> Place | None:
    """The walk of kernels/pushdown_reference.py, over the host's tables."""
    head, frames = place.head, list(place.frames)
    for symbol in symbols:
        while host.moves[head, symbol, 0] == DEAD and host.nullable[head] and frames:
            head = frames.pop()
        following, pushed = host.moves[head, symbol].tolist()
        if following < 0:
            return None
        if host.nullable[head]:
            for frame in reversed(frames):
                if host.moves[frame, symbol, 0] != DEAD:
                    return None
                if not host.nullable[frame]:
                    break
        head = following
        frames += [pushed] if pushed >= 0 else []
    return Place(head, tuple(frames))


def feed(grammar: Grammar, vocabulary: Vocabulary, host: Pushdown, ahead: Ahead, tokens: list[int], counts: dict[str, float]) -> None:
    matcher, place = grammar.matcher(vocabulary), None
    for token in tokens:
        if not matcher.allows(token):
            return
        start = time.perf_counter()
        if place is None:
            place = host.place(matcher.arena, matcher.state)
            if place is None:
                return
            host.know(place, matcher.arena, matcher.state)
            host.expand_near(place, EXPANDED)
        ahead.look_ahead(place, matcher.arena, matcher.state, AHEAD, EXPANDED)
        counts["seconds"] += time.perf_counter() - start
        free = not matcher.forced_tokens()
        place = device_follow(host, place, token_symbols(vocabulary, token))
        ahead.noted(matcher.arena, matcher.state, token)
        matcher.accept(token)
        known = place is not None and host.knows(place)
        counts["tokens"] += free
        counts["states"] += free and place is None
        counts["masks"] += free and place is not None and not known
        if place is not None:
            host.know(place, matcher.arena, matcher.state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("--stop", type=int, default=2, help="id of the stop token")
    parser.add_argument("--schemas", type=int, default=40)
    options = parser.parse_args()
    data = Path(os.environ.get("AGENTKIT_SHARED", "../shared")) / "maskbench" / "open.jsonl.gz"
    if not data.exists():
        print(f"{data} is not there (set AGENTKIT_SHARED), so nothing is measured")
        return
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, [options.stop])
    totals, schemas, heads = [dict.fromkeys(("tokens", "states", "masks", "seconds"), 0.0) for _ in range(2)], 0, 0
    with gzip.open(data, "rt") as file:
        lines = file.readlines()[: options.schemas]
    for line in lines:
        row = json.loads(line)
        texts = [json.dumps(t["instance"], separators=(",", ":"), ensure_ascii=False) for t in row["tests"] if t["valid"]]
        try:
            grammar = Grammar.from_json_schema(closed(row["schema"]))
            grammar.matcher(vocabulary)
        except GrammarError:
            continue
        host = Pushdown(vocabulary)
        ahead = Ahead(host)
        for number, text in enumerate((texts * 2)[:2]):
            feed(grammar, vocabulary, host, ahead, tokenizer.encode(text, add_special_tokens=False).ids[:200], totals[number])
        schemas, heads = schemas + 1, heads + host.size
    print(f"{schemas} schemas, {heads / max(schemas, 1):.0f} heads each")
    for number, t in enumerate(totals, 1):
        share = {key: 100 * t[key] / max(t["tokens"], 1) for key in ("states", "masks")}
        prepared = 1e3 * t["seconds"] / max(t["tokens"], 1)
        print(f"text {number}: {t['tokens']:.0f} tokens, states missed {share['states']:.1f} %, masks {share['masks']:.1f} %, {prepared:.1f} ms a token ahead")


if __name__ == "__main__":
    main()
