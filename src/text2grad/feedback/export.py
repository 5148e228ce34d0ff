"""Annotations → a folder with a Parquet file and a data card for `datasets` and the Hugging Face hub.

The file holds one record per response with the fields of the data card, which `feedback import table` reads.
"""

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.errors import DataError, require
from text2grad.feedback.examples import FIELDS
from text2grad.feedback.records import Annotation, annotation_to_json
from text2grad.files import json_lines, write_files
from text2grad.types import LABELS, Example

DATA_FILE = "data/train.parquet"

_CARD = """---
license: {license}
pretty_name: {pretty_name}
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

# {name}

Responses with feedback in words and the spans that it is about, for
[Text2Grad](https://arxiv.org/abs/2505.22338): {annotations:,} responses, {positive:,} positive and {negative:,}
negative spans. {without:,} responses have feedback without spans.

| field | meaning |
|---|---|
| `prompt`, `response` | texts |
| `critique.feedback` | the critique in words |
| `critique.spans` | characters [start, end) of the response, "positive" or "negative" |
| `critique.outcome` | a judgement of the whole response, placed on its last token; null if there is none |
| `critique.status` | ok, repaired, unparsable or timed_out; the last two give δ = 0 |
| `critique.unmatched` | the critic's quotes that the response does not contain |

```python
from datasets import load_dataset

annotations = load_dataset("{repository}", split="train")
```

```bash
text2grad feedback import table {repository} --out annotations.jsonl   # with every span checked against its response
```
"""


def write_examples(path: Path, examples: Sequence[Example]) -> None:
    """Write examples as JSONL, which `[data] train` in a recipe reads, atomically.

    Raises:
        DataError: if the file cannot be written, or the `meta` of an example is not JSON.
    """
    try:
        lines = json_lines({key: getattr(example, key) for key in FIELDS} for example in examples)
    except (TypeError, ValueError) as error:
        raise DataError(f"cannot write {path}: {error}") from error
    write_files(path.parent, {path.name: lines})


def write_folder(
    directory: Path, annotations: Sequence[Annotation], *, repository: str, license: str = "unknown"
) -> None:
    """Write the folder of a data set: a data card (README.md) and the annotations as Parquet.

    Args:
        directory: the folder; created if it does not exist.
        annotations: the records of the data set.
        repository: OWNER/NAME on the hub, for the card.
        license: its identifier on the hub, such as "apache-2.0".

    Raises:
        ConfigError: if pyarrow is missing.
        DataError: if it cannot be written.
    """
    data = directory / DATA_FILE
    write_files(data.parent, {data.name: _parquet(annotations)})
    write_files(directory, {"README.md": data_card(annotations, repository, license).encode()})


def push_folder(directory: Path, repository: str, *, private: bool = False) -> str:
    """Upload a folder to the Hugging Face hub as a data set, and return its URL.

    huggingface_hub supplies the token (`hf auth login`, or HF_TOKEN).

    Raises:
        ConfigError: if huggingface_hub is missing.
        DataError: if the hub refuses the upload or cannot be reached.
    """
    require("huggingface_hub", extra="train", purpose="the hub")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    # The bases of HfHubHTTPError are OSError and the base error of the HTTP library, which depends on the version.
    failures: tuple[type[Exception], ...] = (*HfHubHTTPError.__bases__, ValueError)
    try:
        address = api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, repo_type="dataset", folder_path=directory)
    except failures as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise DataError(f"cannot push {directory} to {repository}: {why}. The folder is complete; try again") from error
    return str(address)


def data_card(annotations: Sequence[Annotation], repository: str, license: str) -> str:
    """Return the data card: counts, schema, and code that loads the data."""
    labels = Counter(span.label for annotation in annotations for span in annotation.critique.spans)
    return _CARD.format(
        license=json.dumps(license),
        pretty_name=json.dumps(repository.rpartition("/")[2]),
        file=DATA_FILE,
        name=repository.rpartition("/")[2],
        annotations=len(annotations),
        **{label: labels[label] for label in LABELS},
        without=sum(not annotation.critique.spans for annotation in annotations),
        repository=repository,
    )


def _parquet(annotations: Sequence[Annotation]) -> bytes:
    """Return annotations as a Parquet file."""
    require("pyarrow", extra="train", purpose="a Parquet file")
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    try:
        table = pa.Table.from_pylist([*map(annotation_to_json, annotations)], schema=_schema(pa))
        pq.write_table(table, buffer)
    except UnicodeEncodeError as error:
        raise DataError(f"Parquet holds valid Unicode only: {error}. Mend the annotation") from error
    return buffer.getvalue()


def _schema(pa: Any) -> Any:
    """Return the pyarrow schema."""
    span = pa.struct({"start": pa.int64(), "end": pa.int64(), "label": pa.string()})
    texts = {"status": pa.string(), "unmatched": pa.list_(pa.string())}
    critique = {"feedback": pa.string(), "spans": pa.list_(span), "outcome": pa.float64(), **texts}
    return pa.schema({"prompt": pa.string(), "response": pa.string(), "critique": pa.struct(critique)})
