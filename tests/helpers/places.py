"""Directories that tests read: the repository, the committed test data, and the shared folder beside the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"
STORIES = SHARED / "models" / "stories260k"
SMOLLM2 = ROOT / "models" / "smollm2"
