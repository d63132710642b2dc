"""When this process began, and when it reached what: the figures for a cold start include Python itself and all imports.

Input: /proc where there is one. Elsewhere the count starts at the program's first line, and says so. Knows nothing of models.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from agentkit.demo import FIRST_LINE

__all__ = ["Stages", "process_age"]


def process_age() -> float | None:
    """Seconds since the operating system made this process (to 10 ms); None where it does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before may hold blanks and parentheses
        ticks = int(fields[19])  # field 22, starttime: clock ticks after boot; see proc_pid_stat(5)
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):  # not Linux
        return None


@dataclass
class Stages:
    """Moments of a start, in seconds after it.

    exact: counted from the birth of the process; if not, from the program's first line.
    reached: name of the stage -> seconds, in the order in which they were reached; a stage keeps its first time.
    """

    exact: bool = True
    reached: dict[str, float] = field(default_factory=dict)
    _origin: float = 0.0  # on the clock of time.perf_counter

    @classmethod
    def of_this_process(cls) -> Stages:
        """A count that begins where the process began."""
        age = process_age()
        return cls(age is not None, {}, FIRST_LINE if age is None else time.perf_counter() - age)

    def mark(self, stage: str) -> None:
        """`stage` is reached now."""
        self.reached.setdefault(stage, time.perf_counter() - self._origin)

    @property
    def start(self) -> str:
        """What the seconds count from."""
        return "the start of the process" if self.exact else "the program's first line"
