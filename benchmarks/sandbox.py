"""Programs per second that the sandbox runs, by isolation, compared with a new Python process for each program.

Methods, each with the same short programs and tests:
    bwrap, unshare, process   `Sandbox.run_many` with warm workers (default: one per core)
    throw-away                `run_tests`, which makes a sandbox for each program
    subprocess                `python -I -S -c` of program and tests with `subprocess.run`, without isolation

Times are wall-clock time, the median of several repeats; other load on the machine changes them. An isolation that is
not available is listed under "absent" with the reason.

Run: python benchmarks/sandbox.py [--json PATH] [--programs N] [--workers N] [--repeats N]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from text2grad.sandbox.sandbox import Sandbox, SandboxError, run_tests
from text2grad.sandbox.worker import Isolation

PROGRAM = '''
def runs(numbers):
    """Return the lengths of runs of equal numbers."""
    lengths, last = [], object()
    for number in numbers:
        if number == last:
            lengths[-1] += 1
        else:
            lengths.append(1)
        last = number
    return lengths
'''
TESTS = """
assert runs([]) == []
assert runs([1, 1, 2]) == [2, 1]
assert runs([3] * 1000) == [1000]
assert runs([1, 2, 1, 2]) == [1, 1, 1, 1]
"""


def per_second(way: Callable[[], list[bool]], repeats: int) -> float:
    """Return the median of programs per second; every program must pass its tests."""
    rates = []
    for _ in range(repeats):
        begun = time.perf_counter()
        passed = way()
        rates.append(len(passed) / (time.perf_counter() - begun))
        assert all(passed)
    return round(statistics.median(rates), 1)


def plain(number: int) -> list[bool]:
    """Run the programs in new Python processes, one after another."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM + TESTS]
    return [subprocess.run(command, check=False).returncode == 0 for _ in range(number)]


def main() -> None:
    """Measure every way and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--programs", type=int, default=200, help="programs per repeat (default 200)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="workers (default: cores)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats per median (default 5)")
    chosen = parser.parse_args()
    rates: dict[str, float] = {}
    absent: dict[str, str] = {}
    jobs = [(PROGRAM, TESTS)] * chosen.programs
    for isolation in get_args(Isolation):
        try:
            with Sandbox(workers=chosen.workers, isolation=isolation, accept_weaker=True) as sandbox:
                sandbox.run_many(jobs[: chosen.workers])
                rates[isolation] = per_second(
                    lambda box=sandbox: [o.passed for o in box.run_many(jobs)], chosen.repeats
                )
        except SandboxError as error:
            absent[isolation] = str(error)
    few = max(chosen.programs // 20, 1)
    rates["throw-away"] = per_second(
        lambda: [run_tests(PROGRAM, TESTS, accept_weaker=True).passed for _ in range(few)], chosen.repeats
    )
    rates["subprocess"] = per_second(lambda: plain(few), chosen.repeats)
    result = {
        "unit": "programs per second of the clock, median",
        "versions": {"python": sys.version.split()[0], "kernel": platform.release()},
        "workers": chosen.workers,
        "repeats": chosen.repeats,
        "programs/s": rates,
        "over subprocess": {name: round(rate / rates["subprocess"], 1) for name, rate in rates.items()},
        "absent": absent,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if chosen.json:
        chosen.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
