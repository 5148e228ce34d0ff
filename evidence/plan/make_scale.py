"""Write the tables of evidence/docs/scale.md from formulas, and check the formulas against measured peaks.

python evidence/plan/make_scale.py            # writes evidence/docs/scale.md
python evidence/plan/make_scale.py --check    # exit status 1 if the page is not what the script would write
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from evidence.plan.scale import (
    ENGINES,
    H100,
    LLAMAS,
    Decoder,
    Engine,
    Work,
    memory,
    one_process,
    overhead,
    seconds,
    tensor_parallel,
)
from text2grad.runs.dry_run.devices import gigabytes

ROOT = Path(__file__).resolve().parents[2]
PAGE, MEASURED = ROOT / "evidence/docs/scale.md", ROOT / "evidence/results/plan.json"
GPUS, DEVICE = (8, 64, 256), H100
WORKS = tuple(Work(micro_batch_tokens=tokens) for tokens in (4_096, 2_048, 1_024))
"""The same step in smaller and smaller micro-batches; the first that fits is taken."""
SMALL = {
    "15m": Decoder("15m", 8, 320, 864, 320, 8_192),
    "60m": Decoder("60m", 8, 512, 1_376, 256, 32_768),
    "135m": Decoder("135m", 18, 576, 1_536, 192, 128_256, tied=True),
}
"""The models of benchmarks/plan.py."""
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"rank": 16},
    "value-model": {"value": "model"},
    "lora-value-adapter": {"rank": 16, "value": "adapter"},
    "checkpointing": {"checkpointing": True},
}
GPU_HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419
"""Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions in 54 days on 16,384 GPUs."""
DISK = 2e9
"""Assumed bytes per second of a checkpoint, which the first process writes."""


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown; all columns but the first are numbers."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cells(model: Decoder, engine: Engine, gpus: int) -> tuple[int, str, dict[str, float]]:
    """Return the peak with overhead, its phase, and the seconds."""
    for work in WORKS:
        peaks = {phase: sum(roles.values()) for phase, roles in memory(model, engine, gpus, work).items()}
        phase = max(peaks, key=lambda name: peaks[name])
        peak = peaks[phase] + overhead("cuda", peaks[phase])
        if peak <= DEVICE.memory:
            break
    return peak, phase, seconds(model, engine, gpus, work, DEVICE)


def memory_and_time() -> str:
    """Return the peak of one GPU and the time of a step for every model, engine and number of GPUs."""
    rows = []
    for model in LLAMAS:
        for engine in ENGINES:
            row = [f"{model.name} {engine.name}"]
            for gpus in GPUS:
                peak, phase, times = cells(model, engine, gpus)
                fits = peak <= DEVICE.memory
                row.append(f"{gigabytes(peak) if fits else f'**{gigabytes(peak)}**'} ({phase})")
                row.append(f"{sum(times.values()):.0f} s" if fits else "–")
            rows.append(row)
    return table(["", *(text for gpus in GPUS for text in (f"{gpus} GPUs", "step"))], rows)


def shares() -> str:
    """Return where the time goes, on the smallest number of GPUs that fits."""
    rows = []
    for model in LLAMAS:
        for engine in ENGINES:
            fitting = [gpus for gpus in GPUS if cells(model, engine, gpus)[0] <= DEVICE.memory]
            if fitting:
                times = cells(model, engine, fitting[0])[2]
                whole = sum(times.values())
                parts = 1 if engine.sampler == "own" else tensor_parallel(model, fitting[0])
                own = [f"{times[phase]:.0f} s ({times[phase] / whole:.0%})" for phase in times]
                rows.append([f"{model.name} {engine.name}", str(fitting[0]), *own, str(parts)])
    return table(["", "GPUs", "rollout", "score", "update", "GPUs of one sampler"], rows)


def measured() -> str:
    """Return the formulas beside the measured peaks."""
    rows = []
    for found in json.loads(MEASURED.read_text("utf-8")):
        size, _, setting = found["case"].partition("-")
        roles = one_process(SMALL[size], 1_024, **SETTINGS[setting])
        formula = sum(roles.values())
        formula += overhead("cpu", formula)
        rows.append(
            [
                found["case"],
                gigabytes(found["measured"]),
                f"{found['ratio']:.2f}",
                f"{formula / found['measured']:.2f}",
            ]
        )
    return table(["policy, setting", "measured peak", "trace ÷ measured", "formula ÷ measured"], rows)


def failures() -> str:
    """Return checkpoints and the best interval between them (Young, 1974: √(2 · write · time between failures))."""
    rows = []
    for model, gpus in zip(LLAMAS, GPUS, strict=True):
        size = 12 * model.parameters
        between = GPU_HOURS_PER_FAILURE / gpus * 3_600
        interval = (2 * size / DISK * between) ** 0.5
        row = [f"{model.name}, full, {gpus} GPUs", gigabytes(size), f"{size / DISK / 60:.0f} min"]
        rows.append([*row, f"{between / 86_400:.0f} days", f"{interval / 3_600:.1f} h"])
    return table(["", "checkpoint", "to write", "between failures", "best interval"], rows)


TABLES = {"memory-and-time": memory_and_time, "shares": shares, "measured": measured, "failures": failures}


def page() -> str:
    """Return evidence/docs/scale.md with its tables written anew."""
    text = PAGE.read_text("utf-8")
    for name, make in TABLES.items():
        block = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
        pattern = re.compile(f"<!-- {name} -->\n.*?<!-- /{name} -->", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"{PAGE} must have one block <!-- {name} --> … <!-- /{name} -->")
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    written = page()
    if "--check" in sys.argv:
        sys.exit(int(written != PAGE.read_text("utf-8")))
    PAGE.write_text(written, "utf-8")
