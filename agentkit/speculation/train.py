"""Heads for a model from its own texts: what `agentkit train` does.

Input: the name of a model and prompts. The model writes texts, several at a time, as an agent would have it write them; texts and
the states behind them are kept on disk as they come, so that an interrupted run goes on where it was. Then heads are trained and
put where Engine(speculation=...) finds them. Knows nothing of the command line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.errors import InvalidOption
from agentkit.messages import UserMessage
from agentkit.model import ToolSpec, TurnRequest
from agentkit.speculation.prompts import Prompt, made_up

if TYPE_CHECKING:
    import torch

    from agentkit.engine import Engine, Generation
    from agentkit.engine.models.progress import Progress
    from agentkit.engine.speculation.training import Plan, Text

__all__ = ["Trained", "ask", "train"]

AT_ONCE = 8  # texts written together
MAX_TOKENS = 128  # of a text
WRITING = 0.6  # share of the time that may go into texts


@dataclass(frozen=True)
class Trained:
    """path: of the heads.   texts: trained on.   accuracy: by place ahead, the share of held-out tokens that were guessed right.

    seconds: of writing texts and of training.
    """

    path: Path
    texts: int
    accuracy: tuple[float, ...]
    writing_s: float
    training_s: float


def train(
    kind: str, engine: Engine, *, prompts: Sequence[Prompt] | None = None, texts: int = 400, minutes: float = 25.0, plan: Plan | None = None, progress: Progress
) -> Trained:
    """Trains heads of `kind` ("medusa" or "eagle") for the engine's model.

    Args:
        prompts: that texts are written for; None: tools and questions put together at random.
        texts: how many, at most; with prompts of one's own, each once greedily and then at a temperature.
        minutes: for everything; what was written when three fifths of it are over is trained on.
        plan: of the training; None: the usual one.

    Raises:
        InvalidOption: kind is neither.
        EngineError: too few texts.
    """
    from agentkit.engine.models.decoder import Decoder
    from agentkit.engine.speculation.choose import heads_file
    from agentkit.engine.speculation.training import Plan, train_heads

    if kind not in ("medusa", "eagle"):
        raise InvalidOption(f"heads of the kind {kind!r} cannot be trained; choose 'medusa' or 'eagle'")
    if not isinstance(engine.decoder, Decoder):
        raise InvalidOption(f"heads need the native decoder, and {engine.model_name!r} runs through transformers")
    start = time.perf_counter()
    digest = engine.heads_digest()
    folder = heads_file(kind, digest, None if engine.config.cache_dir is None else Path(engine.config.cache_dir)).parent
    store = TextStore(folder)
    _write_texts(engine, store, list(islice(_tasks(prompts), texts)), start + 60 * minutes * WRITING, progress)
    written = store.texts[:texts]
    middle = time.perf_counter()
    plan = plan or Plan(vocabulary=4096, seconds=max(30.0, start + 60 * minutes - middle))
    path, accuracy = train_heads(kind, engine.decoder, digest, written, folder, plan, progress)
    return Trained(path, len(written), tuple(accuracy), middle - start, time.perf_counter() - middle)


Task = tuple[Prompt, float, int]
"""A prompt, temperature, seed."""


def _tasks(prompts: Sequence[Prompt] | None) -> Iterator[Task]:
    if prompts is None:
        yield from ((prompt, 0.0 if i % 2 == 0 else 0.7, i) for i, prompt in enumerate(made_up()))
        return
    for turn in range(16):
        yield from ((prompt, 0.0 if turn == 0 else 0.7, turn) for prompt in prompts)


class TextStore:
    """Texts in `folder`/texts.jsonl, their states in `folder`/states."""

    def __init__(self, folder: Path) -> None:
        from agentkit.engine.speculation.training import Text

        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.texts: list[Text] = []
        self._path = folder / "texts.jsonl"
        if self._path.exists():
            whole = [line for line in self._path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]  # the last may have been cut
            self.texts = [Text(tuple(t["tokens"]), t["start"], tuple(t["free"])) for t in map(json.loads, whole)]
            self._path.write_text("".join(whole), "utf-8")

    def add(self, text: Text, states: torch.Tensor) -> None:
        from agentkit.engine.speculation.training import save_states

        save_states(self._folder / "states", text, states)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(text)) + "\n")
        self.texts.append(text)


def _write_texts(engine: Engine, store: TextStore, tasks: list[Task], end: float, progress: Progress) -> None:
    """Writes what is missing, AT_ONCE at a time, until `end`."""
    from agentkit.engine.speculation.recorder import recording

    before = len(store.texts)
    rest = tasks[before:]
    if not rest:
        return
    engine.speculate(recording(store.add))
    running: set[Future[None]] = set()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for task in rest:
            if time.perf_counter() > end:
                break
            if len(running) == AT_ONCE:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
            progress("texts by the model itself", len(store.texts), len(tasks))
            running.add(pool.submit(_write, engine, task))
        for future in running:
            future.result()
    engine.speculate("off")  # and every text has been taken down
    progress("texts by the model itself", len(tasks), len(tasks))


def _write(engine: Engine, task: Task) -> None:
    prompt, temperature, seed = task
    ask(engine, prompt, max_tokens=min(MAX_TOKENS, engine.max_context // 2), temperature=temperature, seed=seed)


def ask(engine: Engine, prompt: Prompt, **options: Any) -> Generation:
    """One generation as an agent would ask for it: with tools, a call in the model's own format under its grammar."""
    from agentkit.grammars import Grammar
    from agentkit.local_model import LocalModel

    if not prompt.tools:
        return engine.chat(list(prompt.messages), **{"allow_truncated": True, **options})
    protocol = LocalModel(engine).protocol_of(engine)
    head, last = list(prompt.messages[:-1]), str(prompt.messages[-1]["content"])
    specs = [ToolSpec(t["name"], t["description"], t["parameters"]) for t in prompt.tools]
    request = TurnRequest([UserMessage(content=last)], "Call the tool that fits the question.", specs, "required")
    messages, tools = protocol.render(request), protocol.tools(request)
    encode = partial(engine.encode_chat, [*messages[:-1], *head, messages[-1]])
    ids = encode() if tools is None else encode(tools=tools)
    grammar = Grammar.from_tools(list(prompt.tools), "required", format=protocol.format)
    return engine.generate(ids, grammar=grammar, **options)
