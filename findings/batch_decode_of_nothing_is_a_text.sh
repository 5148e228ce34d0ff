#!/usr/bin/env bash
# In transformers 5 the texts of an empty batch of token ids are one empty text, so texts and rows no longer pair up.
#
# Expected: batch_decode returns as many texts as it gets rows of ids, so none for none, as in transformers 4.
# Seen: since version 5 batch_decode hands its rows to decode, which looks at the first element to tell one row from
# several. An empty list has no first element and is read as one row without tokens: the answer is [""]. A filter that
# leaves no response, or the last, empty part of a divided batch, then comes back with one text more than it has rows;
# zip() drops it in silence, zip(strict=True) raises, and a mean over texts counts an answer that nobody gave.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/decode.py" <<'PY'
import sys

import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

words = {"tall": 0, "ships": 1, "[UNK]": 2}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")), unk_token="[UNK]")
two, none = tokenizer.batch_decode([[0], [1]]), tokenizer.batch_decode([])
print("transformers", transformers.__version__, "two rows:", two, "no row:", none)
assert two == ["tall", "ships"]
assert none == ([] if sys.argv[1] == "4" else [""]), "the behaviour has changed"
PY
for version in 4.57.3 5.23.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet "transformers==$version"
  "$folder/$version/bin/python" "$folder/decode.py" "${version%%.*}" 2> "$folder/err" || { cat "$folder/err"; exit 1; }
done
# Output seen:
#   transformers 4.57.3 two rows: ['tall', 'ships'] no row: []
#   transformers 5.23.0 two rows: ['tall', 'ships'] no row: ['']
