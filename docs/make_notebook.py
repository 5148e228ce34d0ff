"""Run docs/notebook.ipynb, and write into it what its cells show.

    python docs/make_notebook.py   # two or three minutes; needs the extra `dev`

Who reads the file on a forge sees results: progress, and pages in frames, which a forge leaves out, are not kept.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = Path(__file__).with_name("notebook.ipynb")
INSTALL, PAGE = "install", "page"
"""Tags of the cell that installs the package, which is not run, and of cells that show a page in a frame."""

PROGRESS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  .*\n", re.MULTILINE)


def read() -> NotebookNode:
    """Return the notebook of the repository."""
    return nbformat.read(NOTEBOOK, as_version=4)


def tagged(cell: NotebookNode, tag: str) -> bool:
    """Return whether a cell has a tag."""
    return tag in cell.metadata.get("tags", [])


def run(folder: Path) -> NotebookNode:
    """Return the notebook after a run in a folder, with this Python and the commands beside it."""
    notebook = read()
    installs = [cell for cell in notebook.cells if tagged(cell, INSTALL)]
    sources = [cell.source for cell in installs]
    for cell in installs:
        cell.source = ""
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=900, record_timing=False, coalesce_streams=True, resources=place)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    client.execute(env={**os.environ, "PATH": path})
    for cell, source in zip(installs, sources, strict=True):
        cell.source = source
    return notebook


def kept(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook with the outputs that a reader of the file needs."""
    notebook.metadata = read().metadata
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if output.output_type == "stream":
                output.text = PROGRESS.sub("", output.text)
        shown = [each for each in cell.outputs if each.get("name") != "stderr" and each.get("text") != ""]
        cell.outputs = [] if tagged(cell, PAGE) else shown
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        nbformat.write(kept(run(Path(made))), NOTEBOOK)
