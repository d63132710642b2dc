"""Two hundred records through one engine at once: free text in, validated objects out, one JSON line each.

    python examples/batch_extraction.py [--records 200] [--out people.jsonl]

Interrupt it (Ctrl-C) and start it again: what is in the file already is not done twice. All requests share the computed
instructions, and as many run together as the engine takes (`max_running`).
"""

import argparse
import asyncio
import itertools
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentkit import Engine

NAMES = ["Anna", "Bob", "Chen", "Dana", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Julia"]
CITIES = ["Oslo", "Rome", "Kyoto", "Lima", "Cairo"]
JOBS = ["teacher", "nurse", "engineer", "cook"]
INSTRUCTIONS = "Read the text and write down the person it is about as JSON with name, age, city and job.\n\n"


class Person(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    age: Annotated[int, Field(ge=0, le=120)]
    city: Annotated[str, Field(max_length=20)]
    job: Literal["teacher", "nurse", "engineer", "cook"]


def records(count: int) -> list[str]:
    """Made-up texts, each different."""
    people = itertools.cycle(itertools.product(NAMES, CITIES, JOBS))
    return [
        f"{name}, {20 + i % 50} years old, has worked as a {job} in {city} since {1990 + i % 30}."
        for i, (name, city, job) in zip(range(count), people, strict=False)
    ]


def finished(path: Path) -> set[int]:
    """Numbers of the records that the file holds; a last line that was cut off by an interruption is removed."""
    if not path.exists():
        return set()
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(whole), encoding="utf-8")
    return {json.loads(line)["record"] for line in whole}


async def extract(engine: Engine, texts: list[str], path: Path) -> None:
    done = finished(path)
    left = [number for number in range(len(texts)) if number not in done]
    together = asyncio.Semaphore(engine.config.max_running)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[rate]}"))
    with path.open("a", encoding="utf-8") as file, Progress(*columns) as progress:
        task = progress.add_task("extracting", total=len(texts), completed=len(done), rate="")

        async def one(number: int) -> None:
            async with together:
                prompt = f"{INSTRUCTIONS}Text: {texts[number]}\nJSON: "
                generation = await engine.agenerate(prompt, schema=Person, max_tokens=80)
            file.write(json.dumps({"record": number, "text": texts[number], "person": generation.value.model_dump()}) + "\n")
            file.flush()
            stats = engine.stats()
            progress.update(task, advance=1, rate=f"{stats.running} running, {stats.hit_rate:.0%} of prompts cached")

        async with asyncio.TaskGroup() as group:
            for number in left:
                group.create_task(one(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("people.jsonl"))
    options = parser.parse_args()
    with Engine(options.model) as engine, engine.pin(prompt=INSTRUCTIONS):
        try:
            asyncio.run(extract(engine, records(options.records), options.out))
        except KeyboardInterrupt:
            print(f"interrupted; {len(finished(options.out))} of {options.records} are in {options.out}, start again to go on")
            return
        stats = engine.stats()
        print(f"{len(finished(options.out))} records in {options.out}")
        print(f"{stats.output_tokens} tokens, of them {stats.forced_tokens} forced, in {stats.steps} forwards; {stats.hit_rate:.0%} of the prompts were cached")


if __name__ == "__main__":
    main()
