"""Critiques per second with a server that needs 200 ms for each and accepts 64 at once: at best 320 per second.

`text2grad annotate` runs as one process, from its start to its last file. The server is another process, on loopback,
and refuses the 65th concurrent request with status 429. Two rates are measured: over the whole run of the process, and
over the time in which the server had requests. Peak memory is the value of the kernel. Other load on the machine
changes the rates, so the load average of the last minute is part of the result.

Run: python benchmarks/annotate.py [--json PATH] [--requests N] [--concurrency N] [--delay-s S]
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from fault_server import Running, running

PROMPT = "Summarize: " + "the fair was moved from Lyon to Nice, and nobody told the baker, who drove there. " * 25


def annotate(directory: Path, server: Running, requests: int, concurrency: int) -> tuple[float, int]:
    """Run the command on `requests` responses; return its seconds and its exit status."""
    records = [
        {"prompt": f"{PROMPT} ({row})", "response": f"The fair is in Lyon, says {row}."} for row in range(requests)
    ]
    (directory / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (directory / "recipe.toml").write_text(
        f'[data]\ntrain = "{directory}/data.jsonl"\n[annotate]\nmodel = "m"\napi_key_env = ""\n'
        f'base_url = "{server.url}"\nout = "{directory}/out"\nconcurrency = {concurrency}\n'
    )
    begun = time.perf_counter()
    command = [sys.executable, "-m", "text2grad.cli", "annotate", str(directory / "recipe.toml")]
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    return time.perf_counter() - begun, status


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--requests", type=int, default=6_400, help="responses to judge (default 6,400)")
    parser.add_argument("--concurrency", type=int, default=64, help="requests at once (default 64)")
    parser.add_argument("--delay-s", type=float, default=0.2, help="seconds that an answer takes (default 0.2)")
    chosen = parser.parse_args()
    flags = ("--at-once", str(chosen.concurrency), "--delay-s", str(chosen.delay_s))
    with tempfile.TemporaryDirectory() as directory, running(*flags) as server:
        seconds, status = annotate(Path(directory), server, chosen.requests, chosen.concurrency)
        state, requests = server.state(), server.requests()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN)
    ideal = chosen.concurrency / chosen.delay_s
    rate = chosen.requests / state["busy_s"]
    result = {
        "versions": {"python": sys.version.split()[0], "kernel": platform.release()},
        "cores": len(os.sched_getaffinity(0)),
        "load of the last minute": round(os.getloadavg()[0], 1),
        "exit status": status,
        "critiques": chosen.requests,
        "requests": requests,
        "most at once": state["most_active"],
        "ideal per second": round(ideal, 1),
        "per second while the server was asked": round(rate, 1),
        "share of the ideal": round(rate / ideal, 3),
        "per second with start and end of the process": round(chosen.requests / seconds, 1),
        "peak memory, MiB": round(peak.ru_maxrss / 1024),
        "processor seconds of the process and the server": round(peak.ru_utime + peak.ru_stime, 1),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if chosen.json:
        chosen.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
