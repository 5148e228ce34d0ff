"""Files of chat suites: AlpacaEval's data in its own format."""

import json
from collections.abc import Sequence
from pathlib import Path

from places import DATA

CHATML = """<|im_start|>system
You judge.
<|im_end|>
<|im_start|>user
"instruction": \"\"\"{instruction}\"\"\"
"output": \"\"\"{output_1}\"\"\"
"output": \"\"\"{output_2}\"\"\"
## Best Model Identifier
<|im_end|>"""
"""A prompt in the format of AlpacaEval's."""


def alpaca(path: Path, outputs: Sequence[str], *, gamed: bool = False) -> Path:
    """Write instructions with the outputs of a baseline, the judge's prompt, and rows of length control on request."""
    path.mkdir(exist_ok=True)
    records = [{"instruction": f"Do {row}.", "output": text, "generator": "base"} for row, text in enumerate(outputs)]
    (path / "alpaca_eval.json").write_text(json.dumps(records))
    (path / "alpaca_eval_clf.txt").write_text(CHATML)
    if gamed:
        (path / "df_gamed.csv").write_bytes((DATA / "length_control" / "df_gamed.csv").read_bytes())
    return path
