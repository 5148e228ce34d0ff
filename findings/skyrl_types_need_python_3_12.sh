#!/usr/bin/env bash
# SkyRL declares Python 3.11 and later, and the types of its Tinker service load from 3.12 on.
#
# Expected: skyrl 0.3.0 says "Requires-Python: >=3.11", pip installs it there, and `import skyrl.tinker.types` works.
# Seen: the module puts a `TypedDict` of `typing` into a pydantic model. Before Python 3.12 such a class does not tell pydantic
# which of its keys come from a base, so pydantic 2 refuses it while the model is made: PydanticUserError at import.
# `typing_extensions.TypedDict` under the name typing.TypedDict, set before the import, is enough; no key is missing then.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3.11}
"$python" -c 'import sys; assert sys.version_info[:2] == (3, 11), "this needs Python 3.11: set PYTHON"'
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-deps 'skyrl==0.3.0'
"$folder/venv/bin/pip" install --quiet 'pydantic==2.13.4' 'typing_extensions==4.15.0'
cat > "$folder/load.py" <<'PY'
import platform
import sys
import typing
from importlib.metadata import metadata, version

print("Python", platform.python_version(), "skyrl", version("skyrl"), "pydantic", version("pydantic"))
print("skyrl requires Python", metadata("skyrl")["Requires-Python"])
assert metadata("skyrl")["Requires-Python"] == ">=3.11"
try:
    import skyrl.tinker.types
except Exception as error:
    told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print("import skyrl.tinker.types:", told)
    assert "typing_extensions.TypedDict" in told
else:
    sys.exit("the import works now")

import typing_extensions

for name in [name for name in sys.modules if name.startswith("skyrl")]:
    del sys.modules[name]
typing.TypedDict = typing_extensions.TypedDict
import skyrl.tinker.types as types

keys = sorted(types.MultiModalKwargs.__annotations__)
print("with typing_extensions' TypedDict in its place it loads; keys of MultiModalKwargs:", ", ".join(keys))
assert keys == ["image_grid_thw", "pixel_values"]
PY
"$folder/venv/bin/python" "$folder/load.py"
