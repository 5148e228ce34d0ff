"""How fast is the studio on a large run? Indexing, first view, scrolling, filters, search, and the server's memory.

    python benchmarks/studio.py --rollouts 100000 --out studio.json

A run with this number of rollouts of 200 tokens is written to --directory, unless it is there. The server runs in a
process of its own, as a reader starts it, and is asked over HTTP. Peers, in turn with it: SQLite's own scan and
sort of the same index for each filter, without HTTP; and a plain loop over the files that counts the rollouts with some
words, the search of a reader without an index.
"""

import argparse
import json
import os
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from text2grad.files import to_json

VOCABULARY = 5000
TOKENS = 200
PER_STEP = 64


def write_run(directory: Path, rollouts: int, seed: int = 0) -> None:
    """Write a run of random words; numbers have the digits that the trainer writes."""
    rng = random.Random(seed)
    words = [" " + "".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(VOCABULARY)]
    (directory / "rollouts").mkdir(parents=True)
    numbers = [[round(rng.gauss(0, 1), 5) for _ in range(TOKENS)] for _ in range(97)]
    for first in range(0, rollouts, 5000):
        with (directory / "rollouts" / f"{first // 5000:05d}.jsonl").open("wb") as file:
            for number in range(first, min(first + 5000, rollouts)):
                file.write(to_json(_record(number, rng, words, numbers)) + b"\n")


def _record(number: int, rng: random.Random, words: list[str], numbers: list[list[float]]) -> dict[str, Any]:
    chosen = rng.choices(words, k=TOKENS)
    ends, offsets = 0, []
    for word in chosen:
        offsets.append([ends, ends + len(word)])
        ends += len(word)
    spans = [{"start": s, "end": e, "label": rng.choice(("positive", "negative"))} for s, e in rng.sample(offsets, 5)]
    feedback = f"'{chosen[3].strip()}' is not a word; the rest reads well."
    critique = {"feedback": feedback, "spans": spans, "outcome": None, "status": "ok", "unmatched": []}
    columns = {name: rng.choice(numbers) for name in ("delta", "reward", "kl", "value", "advantage")}
    return {
        "step": number // PER_STEP,
        "prompt": f"Write about{''.join(words[number % 4000 : number % 4000 + 12])}.",
        "response": "".join(chosen),
        "truncated": rng.random() < 0.1,
        "critique": critique,
        "ids": rng.choices(range(VOCABULARY), k=TOKENS),
        "offsets": offsets,
        **columns,
    }


class Client:
    """Requests to the server, with its cookie."""

    def __init__(self, address: str) -> None:
        """Exchange the token for the cookie."""
        self.base = address.split("/?")[0]
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(address).read()
        self.open = opener.open

    def get(self, path: str) -> Any:
        """Return the JSON of a path."""
        return json.loads(self.open(f"{self.base}/api/{path}").read())


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has used, which other work on the machine hardly changes."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(path.read_text("ascii").split()[0]) for path in tasks) / 1e9


def seconds(work: Callable[[], Any]) -> float:
    """Return how long some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def summary(times: list[float]) -> dict[str, float]:
    """Return median and 95th percentile in milliseconds."""
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return {"median_ms": round(1000 * statistics.median(times), 1), "p95_ms": round(1000 * p95, 1)}


LABELS = {"negative": "negative > 0", "both": "positive > 0 AND negative > 0", "none": "positive + negative = 0"}
ORDERS = {
    "reward-low": "reward IS NULL, reward, id",
    "advantage": "peak DESC, id",
    "newest": "id DESC",
    "kl": "kl DESC",
}


def measure_filters(client: Client, index: Path, process: int, rollouts: int, repeats: int) -> dict[str, Any]:
    """Measure filters of the server and, in turn, the same conditions and orders as queries of SQLite."""
    rng, times, peer, used = random.Random(1), list[float](), list[float](), 0.0
    connection = sqlite3.connect(index)
    connection.execute("PRAGMA cache_size = -8000")
    for _ in range(repeats):
        low, reward = rng.randrange(rollouts // PER_STEP), round(rng.uniform(-9, 9), 3)
        label, order = rng.choice(tuple(LABELS)), rng.choice(tuple(ORDERS))
        asked = f"&step_from={low}&label={label}&order={order}&reward_from={reward}"
        before, start = cpu_seconds(process), time.perf_counter()
        found = client.get(f"runs/0/rollouts?count=100{asked}")
        times.append(time.perf_counter() - start)
        used += cpu_seconds(process) - before
        query = f"SELECT id FROM rollouts WHERE step >= ? AND reward >= ? AND {LABELS[label]} ORDER BY {ORDERS[order]}"
        start = time.perf_counter()
        rows = connection.execute(query, (low, reward)).fetchall()
        peer.append(time.perf_counter() - start)
        assert found["total"] == len(rows)
    connection.close()
    own, other = summary(times), summary(peer)
    return {
        "filters": {**own, "server_cpu_mean_ms": round(1000 * used / repeats, 1)},
        "filters_by_sqlite": other,
        "filters_p95_ratio": round(other["p95_ms"] / own["p95_ms"], 1),
    }


def measure(client: Client, index: Path, process: int, rollouts: int, repeats: int) -> dict[str, Any]:
    """Measure an indexed run."""
    rng = random.Random(1)
    rows = "runs/0/rollouts?count=100"
    first = seconds(lambda: [client.get("studio"), client.get(rows), client.get("runs/0/curves")])
    example = client.get(rows)["rows"][7]["response"].split()
    scroll = [seconds(lambda: client.get(f"{rows}&start={rng.randrange(rollouts)}")) for _ in range(repeats)]
    opened = [seconds(lambda: client.get(f"runs/0/rollouts/{rng.randrange(1, rollouts)}")) for _ in range(repeats)]

    filters = measure_filters(client, index, process, rollouts, repeats)
    searches = [rng.choice(example), " ".join(example[4:6]), example[9][:3], "not a word", "zzzqqq", example[2] + " "]
    search = {
        text: seconds(lambda text=text: client.get(f"{rows}&text={text.replace(' ', '%20')}")) for text in searches
    }
    status = Path(f"/proc/{process}/status").read_text("ascii")
    memory = {name: int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("VmRSS", "VmHWM")}
    return {
        "first_view_ms": round(1000 * first, 1),
        "scroll": summary(scroll),
        "open_response": summary(opened),
        **filters,
        "search_ms": {text: round(1000 * found, 1) for text, found in search.items()},
        "memory_mb": {name: round(value, 1) for name, value in memory.items()},
    }


def main() -> None:
    """Write the run, serve it, and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--directory", type=Path, default=Path("runs/benchmark-studio"))
    parser.add_argument("--keep-index", action="store_true", help="use the index of an earlier measurement")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    run, store = args.directory / str(args.rollouts), args.directory / f"store-{args.rollouts}"
    if not run.exists():
        write_run(run, args.rollouts)
    if not args.keep_index:
        shutil.rmtree(store, ignore_errors=True)
    command = [sys.executable, "-m", "text2grad.cli", "studio", str(run), "--out", str(store), "--port", "0"]
    with subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(re.findall(r"http\S+", line)[0] for line in process.stdout if line.startswith("open"))
            client, start = Client(address), time.perf_counter()
            seen, during = 0, []
            while seen < args.rollouts:
                during.append(seconds(lambda: client.get("runs/0/rollouts?count=100")))
                seen = client.get("studio")["runs"][0]["rollouts"]
                time.sleep(0.2)
            indexed = time.perf_counter() - start
            [index] = (store / "index").glob("*.sqlite")
            found = measure(client, index, process.pid, args.rollouts, args.repeats)
        finally:
            process.terminate()
    size = sum(path.stat().st_size for path in (run / "rollouts").iterdir())
    word = b"not a word"
    plain = seconds(lambda: sum(word in line for path in (run / "rollouts").iterdir() for line in path.open("rb")))
    bytes_of_index = sum(path.stat().st_size for path in (store / "index").iterdir())
    whole = {
        "rollouts": args.rollouts,
        "run_mb": round(size / 2**20),
        "index_mb": round(bytes_of_index / 2**20),
        "indexing_s": round(indexed, 1),
        "load_average": round(os.getloadavg()[0], 1),
        "list_while_indexing": summary(during),
        **found,
        "plain_loop_search_ms": round(1000 * plain),
    }
    print(json.dumps(whole, indent=2))
    if args.out:
        args.out.write_bytes(to_json(whole, indent=2))


if __name__ == "__main__":
    main()
