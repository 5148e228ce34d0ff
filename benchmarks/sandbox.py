"""Programs per second that the sandbox judges, by isolation and mode, beside a new Python process for each program.

Methods, each with the same short programs and tests:
    bwrap, unshare, landlock, process   mode "separate" of `Sandbox.run_many` with warm workers, by isolation
    shared, script   the other modes, in the strongest isolation that works
    before           an older checkout (--before its folder `src`)
    throw-away       `run_tests`, which makes a sandbox for each program
    subprocess       `python -I -S -c` of program and tests with `subprocess.run`, without isolation

Methods take turns, so that other load on the machine falls on all alike: compare ratios. Each rate is the median of the
repeats, by the clock. "cpu ms" is the processor time of a program with its share of worker and caller, in isolation
"process", which other load hardly changes: an idle machine judges about cores / cpu programs per second.

Run: python benchmarks/sandbox.py [--json PATH] [--programs N] [--workers N] [--repeats N] [--before SRC]
"""

import argparse
import inspect
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from text2grad_sandbox.cases import Case
from text2grad_sandbox.sandbox import Sandbox, isolations, run_tests

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
SCRIPT = PROGRAM + "print(*runs(input().split()))\n"
BEFORE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from text2grad.critics.sandbox.sandbox import Sandbox
with Sandbox(workers=int(sys.argv[2])) as box:
    print(box.isolation, flush=True)
    for line in sys.stdin:
        program, tests, number = json.loads(line)
        print(json.dumps([one.passed for one in box.run_many([(program, tests)] * number)]), flush=True)
exec("import resource\\n" + sys.argv[3])
print(cpu_ms(Sandbox, program, tests), flush=True)
"""


def cpu_ms(box: type, program: str, tests: str, programs: int = 300) -> float:
    """Return the processor time of one program, in milliseconds: of many programs, without the worker's start."""

    def used(number: int) -> float:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        before = [resource.getrusage(kind) for kind in kinds]
        with box(workers=1, isolation="process", accept_weaker=True) as one:
            assert all(result.passed for result in one.run_many([(program, tests)] * number, timeout_s=10))
        after = [resource.getrusage(kind) for kind in kinds]
        return sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))

    return round(1000 * (used(programs) - used(1)) / (programs - 1), 2)


Way = Callable[[int], list[bool]]


class Before:
    """The sandbox of an older checkout, in a process of its own."""

    def __init__(self, source: Path, workers: int) -> None:
        """Start it."""
        command = [sys.executable, "-c", BEFORE, str(source), str(workers), inspect.getsource(cpu_ms)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.into, self.out = self.process.stdin, self.process.stdout
        self.isolation = self.out.readline().strip()

    def run(self, number: int) -> list[bool]:
        """Run programs, and return whether each has passed."""
        self.into.write(json.dumps([PROGRAM, TESTS, number]) + "\n")
        self.into.flush()
        passed: list[bool] = json.loads(self.out.readline())
        return passed

    def close(self) -> float:
        """End it, and return the processor time of one program."""
        self.into.close()
        cpu = float(self.out.read())
        self.process.wait()
        return cpu


def plain(number: int) -> list[bool]:
    """Run the programs in new Python processes, one after another."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM + TESTS]
    return [subprocess.run(command, check=False).returncode == 0 for _ in range(number)]


def passes(box: Sandbox, tests: str | list[Case], program: str, mode: Literal["shared"] | None) -> Way:
    """Return a way to run so many programs and to tell whether each has passed."""
    return lambda number: [one.passed for one in box.run_many([(program, tests)] * number, mode=mode, timeout_s=10)]


def ways(chosen: argparse.Namespace, stack: ExitStack, missing: dict[str, str]) -> dict[str, tuple[Way, int]]:
    """Return the ways, each with its number of programs."""
    number, few = chosen.programs, max(chosen.programs // 20, 1)
    found: dict[str, tuple[Way, int]] = {}
    working = [name for name, reason in missing.items() if not reason]
    for name in working:
        box = stack.enter_context(Sandbox(workers=chosen.workers, isolation=name, accept_weaker=True))
        found[name] = (passes(box, TESTS, PROGRAM, None), number)
    shared, script = (
        stack.enter_context(Sandbox(workers=chosen.workers, isolation=working[0], accept_weaker=True)) for _ in range(2)
    )
    found["shared"] = (passes(shared, TESTS, PROGRAM, "shared"), few)
    found["script"] = (passes(script, [Case("a a b", "2 1")], SCRIPT, None), number)
    throw_away = lambda n: [run_tests(PROGRAM, TESTS, accept_weaker=True).passed for _ in range(n)]  # noqa: E731
    found["throw-away"] = (throw_away, max(few // 4, 1))
    found["subprocess"] = (plain, few)
    return found


def main() -> None:
    """Measure every way and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--programs", type=int, default=200, help="programs per repeat (default 200)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="workers (default: cores)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats per median (default 5)")
    parser.add_argument("--before", type=Path, help="the folder src of an older checkout")
    chosen = parser.parse_args()
    rates: dict[str, list[float]] = {}
    missing = isolations()
    with ExitStack() as stack:
        found = ways(chosen, stack, missing)
        older = Before(chosen.before, chosen.workers) if chosen.before else None
        if older:
            found[f"before ({older.isolation})"] = (older.run, chosen.programs)
        for run, number in found.values():  # warm workers
            assert all(run(min(chosen.workers, number)))
        for _ in range(chosen.repeats):
            for name, (run, number) in found.items():
                begun = time.perf_counter()
                assert all(run(number))
                rates.setdefault(name, []).append(number / (time.perf_counter() - begun))
    medians = {name: round(statistics.median(one), 1) for name, one in rates.items()}
    base = next((name for name in medians if name.startswith("before")), "subprocess")
    result = {
        "unit": "programs per second of the clock, median",
        "versions": {"python": sys.version.split()[0], "kernel": platform.release()},
        "workers": chosen.workers,
        "repeats": chosen.repeats,
        "load": [round(one, 1) for one in os.getloadavg()],
        "programs/s": medians,
        f"over {base}": {name: round(rate / medians[base], 2) for name, rate in medians.items()},
        "cpu ms": {"separate": cpu_ms(Sandbox, PROGRAM, TESTS), **({"before": older.close()} if older else {})},
        "absent": {name: reason for name, reason in missing.items() if reason},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if chosen.json:
        chosen.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
