"""Annotations → a folder with a Parquet file and a data card for `datasets` and the Hugging Face hub.

The file holds one record per response with the fields of the data card, which `feedback import table` reads.
"""

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from text2grad.errors import DataError, require
from text2grad.feedback.records import Annotation, annotation_to_json
from text2grad.files import write_files
from text2grad.types import LABELS, Conversation, Span

DATA_FILE = "data/train.parquet"

_CARD = """---
license: {license}
pretty_name: {name}
tags:
- text2grad
- span-feedback
- critique
configs:
- config_name: default
  data_files:
  - split: train
    path: {file}
---

# {title}

Responses with feedback in words and the spans that it is about, for
[Text2Grad](https://arxiv.org/abs/2505.22338): {annotations:,} responses, {positive:,} positive and {negative:,}
negative spans. {without:,} responses have feedback without spans.

| field | meaning |
|---|---|
| `prompt`, `response` | texts |
| `critique.feedback` | the critique in words |
| `critique.spans` | characters [start, end) of the response, "positive" or "negative"{further} |
| `critique.outcome` | a judgement of the whole response, placed on its last token; null if there is none |
| `critique.status` | ok, repaired, unparsable, timed_out or withdrawn; the last three give δ = 0 |
| `critique.unmatched` | the critic's quotes that the response does not contain |

```python
from datasets import load_dataset

annotations = load_dataset("OWNER/NAME", split="train")
```

```bash
text2grad feedback import table OWNER/NAME --out annotations.jsonl   # with every span checked against its response
```
"""


def write_folder(directory: Path, annotations: Sequence[Annotation], *, license: str = "unknown") -> None:
    """Write the folder of a data set: a data card (README.md) and the annotations as Parquet.

    Args:
        directory: the folder; created if it does not exist.
        annotations: the records of the data set.
        license: its identifier on the hub, such as "apache-2.0".

    Raises:
        ConfigError: if pyarrow is missing.
        DataError: if it cannot be written.
    """
    data, title = directory / DATA_FILE, directory.resolve().name
    write_files(data.parent, {data.name: _parquet(annotations)})
    labels = Counter(span.label for annotation in annotations for span in annotation.critique.spans)
    further = _further(annotations)
    card = _CARD.format(
        license=json.dumps(license),
        name=json.dumps(title),
        file=DATA_FILE,
        title=title,
        further=f"; {', '.join(further)}: null where unknown" if further else "",
        annotations=len(annotations),
        **{label: labels[label] for label in LABELS},
        without=sum(not annotation.critique.spans for annotation in annotations),
    )
    write_files(directory, {"README.md": card.encode()})


def _further(annotations: Sequence[Annotation]) -> list[str]:
    """Return the attributes beyond start, end and label that a span has, in their order."""
    known = {name for annotation in annotations for span in annotation.critique.spans for name in span.stated}
    return [each.name for each in fields(Span)[3:] if each.name in known]


def _parquet(annotations: Sequence[Annotation]) -> bytes:
    """Return annotations as a Parquet file."""
    require("pyarrow", extra="train", purpose="a Parquet file")
    import pyarrow as pa
    import pyarrow.parquet as pq

    if any(isinstance(annotation.response, Conversation) for annotation in annotations):
        raise DataError("an annotation is of a conversation, whose turns this Parquet has no place for; take the JSONL")
    types = {"start": pa.int64(), "end": pa.int64(), "turn": pa.int64(), "weight": pa.float64()}
    names = ("start", "end", "label", *_further(annotations))
    span = pa.struct({name: types.get(name, pa.string()) for name in names})
    texts = {"status": pa.string(), "unmatched": pa.list_(pa.string())}
    critique = pa.struct({"feedback": pa.string(), "spans": pa.list_(span), "outcome": pa.float64(), **texts})
    schema = pa.schema({"prompt": pa.string(), "response": pa.string(), "critique": critique})
    buffer = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist([*map(annotation_to_json, annotations)], schema=schema), buffer)
    except UnicodeEncodeError as error:
        raise DataError(f"Parquet holds valid Unicode only: {error}. Mend the annotation") from error
    return buffer.getvalue()
