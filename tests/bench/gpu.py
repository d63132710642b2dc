"""Everything about the GPU path in one run: kernels against their references, and what attention, decoding and prompts reach.

    python tests/bench/gpu.py [--out gpu.json] [--only kernels decode ...] [--seconds 480] [--smoke]

Needs an NVIDIA GPU and says so where there is none. Every section has a time box, and all of them --seconds together; what did not fit is
named, and the file is written whenever something has been found. A section that fails leaves the others alone: they run in a process of their
own, which is begun anew after one that has broken the device, ended the process or not come to an end. The model is a random one in the
shape of Qwen2-7B, in bfloat16. The grammars' kernels, which a new machine compiles for half a minute, are compiled by another process
meanwhile. --smoke runs the same code tiny on the CPU, through Triton's interpreter: it shows that the script works, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from tests.bench.gpu_kit import Box, Figures, Setup
from tests.bench.gpu_sections import AIMS, SECTIONS, Bench

BROKEN = 3
"""What the process of the sections returns where the device does not work any more for it."""
LATE = 90.0
"""Seconds beyond its box after which a section is given up: compiling and a model's making may take some of them."""


class Report:
    """The file of all figures. sections: what each has found, or why it has not."""

    def __init__(self, out: Path, *, goes_on: bool) -> None:
        self.out = out
        self.result: Figures = json.loads(out.read_text()) if goes_on and out.exists() else {"sections": {}}
        self.start = time.perf_counter()

    @property
    def sections(self) -> Figures:
        sections: Figures = self.result["sections"]
        return sections

    def put(self, name: str, box: Box, **more: Any) -> None:
        """A section's figures so far."""
        aim = {"aim": AIMS[name]} if name in AIMS else {}
        took = round(time.perf_counter() - box.start, 2)
        self.sections[name] = {**box.figures, **aim, "seconds": took, "skipped": box.skipped, **more}
        self.write()

    def write(self) -> None:
        """All of it: beside the file first, so that whoever ends this process ends it between two whole ones."""
        beside = self.out.with_suffix(".part")
        beside.write_text(json.dumps(self.result, indent=1))
        beside.replace(self.out)


def machine(setup: Setup) -> Figures:
    import triton

    name = torch.cuda.get_device_name(setup.device) if setup.device.type == "cuda" else platform.processor()
    return {"device": name, "python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__, "smoke": setup.smoke}


def compilations() -> Figures:
    """Kernels that this process has compiled, and seconds, counted from now on."""
    import triton

    counted: Figures = {"kernels": 0, "seconds": 0.0}

    def heard(*, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            counted["kernels"] += 1
            counted["seconds"] = round(counted["seconds"] + times.total / 1e6, 2)

    triton.knobs.compilation.listener = heard
    return counted


def note(report: Report, name: str, box: Box) -> None:
    """What a section has found so far, and what it is at."""
    report.put(name, box, running=box.doing)


def run(setup: Setup, names: Sequence[str], report: Report, limit: float) -> int:
    """Runs the sections within `limit` seconds; 1 if one failed, BROKEN if the device cannot go on after it."""
    report.result["machine"] = machine(setup)
    report.result.setdefault("compiled", []).append(compilations())
    bench, code = Bench(setup, dict(report.sections.get("ceilings", {}))), 0
    for name in names:
        function, seconds = SECTIONS[name]
        box = Box(min(seconds, limit - (time.perf_counter() - report.start)))
        if box.seconds <= 0:
            report.put(name, box, skipped=["all of it: the time is up"])
            continue
        box.noted = partial(note, report, name, box)
        box.noted()
        try:
            function(bench, box)
            setup.sync()  # what has gone wrong on the device comes to light here at the latest
            report.put(name, box)
        except Exception as error:  # noqa: BLE001 - one section must not take the figures of the others with it
            code = 1
            report.put(name, box, error=f"{type(error).__name__}: {error}"[:2000], doing=box.doing, traceback=traceback.format_exc()[-6000:])
        print(f"{name}: {json.dumps(report.sections[name])}", flush=True)
        if code and not works(setup):
            return BROKEN
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
    return code


def works(setup: Setup) -> bool:
    """Does the device still compute for this process? After some errors it never does again."""
    try:
        return bool((torch.ones(2, device=setup.device) + 1).sum().item() == 4.0)
    except RuntimeError:
        return False


def watch(names: Sequence[str], options: argparse.Namespace) -> int:
    """Runs the sections in a process of their own, begun anew with those that are left if it does not come to its end; 0 if none failed."""
    start, left, code = time.perf_counter(), list(names), 0
    options.out.unlink(missing_ok=True)
    while left:
        seconds = options.seconds - (time.perf_counter() - start)
        command = [sys.executable, "-u", __file__, "--worker", "--out", str(options.out), "--seconds", f"{seconds:.1f}", "--only", *left]
        ended = _watched(subprocess.Popen(command), options.out)
        if ended in (0, 1):
            return max(code, int(ended))
        code = 1
        report = Report(options.out, goes_on=True)
        done = [name for name in left if name in report.sections and "running" not in report.sections[name]]
        begun = [name for name in left if "running" in report.sections.get(name, {})]
        for name in begun:
            section = report.sections[name]
            section["error"] = f"{ended}, at: {section.pop('running') or 'its beginning'}"
        report.write()
        if not done and not begun:
            print(f"the process of the sections ended before the first one: {ended}")
            return 1
        left = [name for name in left if name not in (*done, *begun)]
    return code


def _watched(process: subprocess.Popen[bytes], out: Path) -> int | str:
    """What a process returned (0 or 1), or how it ended else; killed where a section takes far longer than its box."""
    name, since = "", time.perf_counter()
    while process.poll() is None:
        time.sleep(0.5)
        sections = json.loads(out.read_text())["sections"] if out.exists() else {}
        now = next((each for each, section in sections.items() if "running" in section), "")
        if now != name:
            name, since = now, time.perf_counter()
        if time.perf_counter() - since > (SECTIONS[name][1] if name else 0) + LATE:
            process.kill()
            process.wait()
            return f"given up after {time.perf_counter() - since:.0f} s"
    code = process.returncode
    return code if code in (0, 1) else "the device did not go on" if code == BROKEN else f"the process ended with {code}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=480.0, help="after so many no further section or figure begins")
    parser.add_argument("--smoke", action="store_true", help="tiny, on the CPU, through the interpreter; figures mean nothing")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [name for name in SECTIONS if name in options.only]
    if options.smoke:
        return run(Setup(torch.device("cpu"), torch.float32, True), names, Report(options.out, goes_on=False), options.seconds)
    if not torch.cuda.is_available():
        print("no NVIDIA GPU here, so nothing is measured; --smoke runs the script itself on the CPU")
        return 0
    if not options.worker:
        return watch(names, options)
    return run(Setup(torch.device("cuda", 0), torch.bfloat16, False), names, Report(options.out, goes_on=True), options.seconds)


if __name__ == "__main__":
    sys.exit(main())
