"""The demonstration: `python -m agentkit.demo`. Tools, questions, what a terminal shows of a run, and the times it took."""

import time

FIRST_LINE = time.perf_counter()
"""When the program's own code began; all other imports come after this one. See clock.py for the start of the process."""
