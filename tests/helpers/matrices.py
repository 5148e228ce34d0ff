"""Tables of whole matrices: one row for each member, written by tests that are marked `slow`."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

MATRICES = Path(__file__).parents[1] / "matrices"


def write_matrix(
    name: str, header: Sequence[str], rows: Iterable[Sequence[str]], *packages: ModuleType, folder: Path = MATRICES
) -> None:
    """Write `tests/matrices/NAME.md`: the date and the versions of packages, then one row for each member."""
    versions = ", ".join(f"{package.__name__} {package.__version__}" for package in packages)
    lines = [f"{datetime.now(UTC).date()}: {versions}", ""]
    for cells in (header, ["---"] * len(header), *rows):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
