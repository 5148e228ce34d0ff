"""Evaluations of a run on held-out prompts → curves of its metrics and of its critic's agreement with the annotator."""

import json
import math
from pathlib import Path
from typing import Any


class Evaluations:
    """Reads `evaluations/*.json` of runs; each file once."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._read: dict[Path, tuple[float, dict[str, Any]]] = {}

    def read(self, run: Path) -> list[dict[str, Any]]:
        """Return {"step": n, "values": {name: value}} of each evaluation, in the order of the steps.

        Names of metrics are those of the run; those of the critic begin with "critic ".
        """
        evaluations = []
        for path in sorted((run / "evaluations").glob("*.json")):
            changed = path.stat().st_mtime
            if path not in self._read or self._read[path][0] != changed:
                try:
                    self._read[path] = (changed, _figures(json.loads(path.read_bytes())))
                except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
                    # under way, or of another program
                    continue
            evaluations.append(self._read[path][1])
        return sorted(evaluations, key=lambda evaluation: int(evaluation["step"]))


def _figures(evaluation: Any) -> dict[str, Any]:
    critic = evaluation.get("critic") or {}
    named = {**evaluation["metrics"], **{f"critic {name}": value for name, value in critic.items()}}
    values = {name: value for name, value in named.items() if type(value) in (int, float) and math.isfinite(value)}
    return {"step": int(evaluation["step"]), "values": values}
