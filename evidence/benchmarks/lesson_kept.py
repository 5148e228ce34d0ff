"""Measure what a lesson keeps; `evidence.lessons.helpfulness` says what each figure is.

    python evidence/benchmarks/lesson_kept.py begin --model models/qwen --run runs/lessons/begin/run \
        --json evidence/results/lessons/begin-kept.json --before-cache runs/lessons/before.json

The figures before depend on no lesson: the cache keeps them, and a program that was stopped goes on. Processor seconds
count, not those of the clock, and are fewest with one thread (OMP_NUM_THREADS=1); what the cache holds costs none.

HumanEval and MBPP take about 45 minutes for each model:

    text2grad evaluate policy before=models/qwen after=runs/lessons/begin/run --baseline before --limit 60 \
        --suite humaneval=../shared/data/humaneval/HumanEval.jsonl.gz \
        --suite mbpp=../shared/data/mbpp/sanitized-mbpp.json --set model.dtype=bfloat16 --out runs/lessons/begin/code
"""

import argparse
import json
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from evidence.lessons import helpfulness
from evidence.lessons.faults import FAULTS
from evidence.lessons.helpfulness import Policy, measure, questions
from text2grad.config import digest_of, load_recipe
from text2grad.costs import peak_memory
from text2grad.errors import DataError
from text2grad.files import readable, to_json, write_atomically
from text2grad.tasks import LESSON_RECIPE


def kept_in(path: Path, of: Any) -> Callable[[str, Callable[[], Any]], Any]:
    """Return a function that returns the value of a name from a file, made and written now if it is missing.

    Raises:
        DataError: if the file cannot be read, or its values are of something else than `of`.
    """
    values: dict[str, Any] = {"of": sha256(to_json(of)).hexdigest()}
    if path.exists():
        with readable(path, "Remove it, to measure the model before a lesson again"):
            kept_values = {**json.loads(path.read_bytes())}
        if kept_values.get("of") != values["of"]:
            raise DataError(f"{path} is of another model, other questions, posts or settings; name another file")
        values = kept_values

    def kept(name: str, make: Callable[[], Any]) -> Any:
        if name not in values:
            print(f"before the lesson: {name}", flush=True)
            values[name] = make()
            write_atomically(path, to_json(values))
        return values[name]

    return kept


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FAULTS)
    parser.add_argument("--model", required=True, help="directory of the model before the lesson")
    parser.add_argument("--run", required=True, help="run of the lesson, or its adapter")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--before-cache", type=Path, help="JSON file of the answers before (default: beside --json)")
    parser.add_argument("--posts", type=Path, default=Path("../shared/data/slf5k_slice/posts_ideal.jsonl"))
    args = parser.parse_args()
    started = time.process_time()
    posts = [json.loads(line)["post"] for line in args.posts.read_text("utf-8").splitlines()[:100]]
    asked, cache = questions(), args.before_cache or args.json.with_suffix(".before.json")
    for path in (args.json, cache):
        path.parent.mkdir(parents=True, exist_ok=True)
    names = ("TOKENS", "PYTHON_TOKENS", "POST_TOKENS", "AT_ONCE", "SPREAD")
    dtype = load_recipe(LESSON_RECIPE).model.dtype  # in which a lesson is given; sums depend on threads, too
    how = [dtype, torch.get_num_threads(), *(getattr(helpfulness, name) for name in names)]
    kept = kept_in(cache, [digest_of(Path(args.model)), [own[:2] for own in asked], posts, how])
    figures = measure(args.name, Policy(args.run, args.model, dtype=dtype), asked, posts, kept)
    figures |= {"processor_s": round(time.process_time() - started, 1), "peak_gb": round(peak_memory() / 2**30, 2)}
    write_atomically(args.json, to_json(figures, indent=1) + b"\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "shown"}, indent=1))


if __name__ == "__main__":
    main()
