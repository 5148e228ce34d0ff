"""Directories that tests read: the repository, the committed test data, and the shared folder beside the repository."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"
STORIES = SHARED / "models" / "stories260k"
SMOLLM2 = ROOT / "models" / "smollm2"
QWEN = ROOT / "models" / "qwen"


def script(path: str) -> Any:
    """Return a script of the repository as a module, by its path from the root."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
