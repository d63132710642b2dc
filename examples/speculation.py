"""Speculation: every proposer on the embedded model, its guesses coloured as they come, and what they save.

    python examples/speculation.py [--plain] [--tokens 160] [--settings ngram lookahead self medusa eagle]

Green: guessed, and the model agreed. Red: guessed, and the model chose otherwise. With --plain: {guessed} and [not]. The text is the
same with every proposer and without. The table is measured here and now; a proposer that does not pay on this machine soon stops
guessing. Medusa and EAGLE need heads: agentkit train medusa, agentkit train eagle.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from agentkit import Engine
from agentkit.engine import Generation
from agentkit.engine.request import Request
from agentkit.engine.speculation.tree import ROOT, TokenTree
from agentkit.speculation.bench import available, compare, table

SETTINGS = ("ngram", "lookahead", "self", "medusa", "eagle")
ORDERS = [{"order": 4711 + 37 * i, "customer": name, "city": city, "paid": i % 2 == 0} for i, (name, city) in enumerate(
    [("Anna Berg", "Oslo"), ("Luis Prado", "Lima"), ("Mei Tanaka", "Kyoto"), ("Ida Lund", "Bergen")]
)]  # fmt: skip
NAME = {"type": "string", "maxLength": 20}
FIELDS = {"order": {"type": "integer"}, "customer": NAME, "city": NAME, "paid": {"type": "boolean"}}
ORDER = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
SCHEMA = {"type": "array", "items": ORDER, "minItems": 4, "maxItems": 4}
QUESTION = f"Repeat these orders as JSON:\n{json.dumps(ORDERS)}"


class Painter:
    """Prints a request's tokens, coloured by what became of the guesses."""

    def __init__(self, engine: Engine, *, plain: bool) -> None:
        self._engine, self._plain = engine, plain
        self._shown = 0

    def __call__(self, request: Request, known: int, tree: TokenTree, kept: list[int]) -> None:
        self._tokens(request.tokens[max(self._shown, len(request.prompt)) : known])
        self._tokens([tree.tokens[node] for node in kept], "\x1b[32m", "{}")
        wrong = next((node for node in tree.children(kept[-1] if kept else ROOT)), None)
        if wrong is not None:
            self._tokens([tree.tokens[wrong]], "\x1b[31;9m", "[]")
        self._shown = known + len(kept)

    def rest(self, prompt: int, generation: Generation) -> None:
        """What came after the last draft."""
        self._tokens(generation.token_ids[max(0, self._shown - prompt) :])
        sys.stdout.write("\n")

    def _tokens(self, tokens: Sequence[int], colour: str = "", marks: str = "") -> None:
        if not tokens:
            return
        text = self._engine.tokenizer.decode(list(tokens), continuation=True)
        if colour and self._plain:
            text = marks[0] + text + marks[1]
        elif colour:
            text = f"{colour}{text}\x1b[0m"
        sys.stdout.write(text)
        sys.stdout.flush()


def ask(engine: Engine, tokens: int) -> Generation:
    return engine.chat([{"role": "user", "content": QUESTION}], schema=SCHEMA, max_tokens=tokens)


def show(engine: Engine, settings: Sequence[str], tokens: int, *, plain: bool) -> None:
    """The same answer with each proposer, then the table."""
    speculators, missing = available(engine, settings)
    prompt = len(engine.encode_chat([{"role": "user", "content": QUESTION}]))
    for setting, speculator in speculators.items():
        assert speculator is not None
        print(f"\n{setting}")
        painter = Painter(engine, plain=plain)
        speculator.listener = painter
        engine.speculate(speculator)
        generation = ask(engine, tokens)
        engine.speculate("off")  # after this the painter has been told of every draft
        painter.rest(prompt, generation)
        speculator.listener = None
    print()
    for cells in table(compare(engine, [lambda engine: ask(engine, tokens)], speculators, repeats=2)):
        print("".join(f"{cell:<20}" for cell in cells).rstrip())
    for setting, why in missing.items():
        print(f"{setting}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--settings", nargs="+", default=SETTINGS)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--plain", action="store_true", help="no colours")
    options = parser.parse_args()
    with Engine(options.model, speculation="off") as engine:
        show(engine, options.settings, options.tokens, plain=options.plain or not sys.stdout.isatty())


if __name__ == "__main__":
    main()
