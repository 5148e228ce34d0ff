"""Draw docs/architecture.svg: the packages of src/text2grad, and an arrow for each import that no other arrows imply.

    python docs/make_architecture.py

In: the table of docs/architecture.md (packages, in the order of the method) and the import statements of src. Out: an
SVG in layers. A package stands one layer above the packages that import it; the order within each layer is the one with
the fewest crossings, found by trying all orders. Standard library only. tests/test_project.py uses `read_table` and
`imports`, too.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "text2grad"
GROUND = ("errors", "types", "files", "progress", "costs")
"""Modules at the top of src/text2grad; the picture shows them as one box."""

ROW = 3  # boxes side by side that a phone shows in a readable size
BOX, BEND, HEIGHT, GAP, RISE, MARGIN = 132, 4, 58, 10, 44, 12
STYLE = """
  .page { fill: #ffffff } .box { fill: #eef6f5; stroke: #0b7a75; stroke-width: 1.2 }
  .line { fill: none; stroke: #59636e; stroke-width: 1.3 } .head { fill: #59636e }
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328 }
  .name { font-size: 13px; font-weight: 600 } .note { font-size: 10.5px }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .box { fill: #12302f; stroke: #4fb8b1 }
    .line { stroke: #9aa4af } .head { fill: #9aa4af } text { fill: #e6edf3 }
  }
"""


class Package(NamedTuple):
    """One row of the table in docs/architecture.md."""

    name: str
    sentence: str
    may_import: frozenset[str]


class Import(NamedTuple):
    """One imported name: `importer` and `module` are dotted paths below text2grad, "" is text2grad itself."""

    importer: str
    module: str
    name: str


class Node(NamedTuple):
    """A box, or a bend of an arrow that passes a layer (its name starts with "|")."""

    name: str
    layer: int


Order = Mapping[int, Sequence[str]]


def read_table(text: str) -> list[Package]:
    """Return the packages that the table of the page lists, in its order."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return [Package(name, sentence, frozenset(re.findall(r"`(\w+)`", cell))) for name, sentence, cell in rows]


def module_name(path: Path) -> str:
    """Return the dotted path of a file below text2grad; a package's own file gives the package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports() -> list[Import]:
    """Return every import of text2grad in src: at the top, in functions and under TYPE_CHECKING."""
    return [found for path in sorted(SOURCE.rglob("*.py")) for found in _imports(path)]


def _imports(path: Path) -> Iterator[Import]:
    importer = module_name(path)
    inside = importer.split(".") if path.name == "__init__.py" else importer.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "text2grad"]
            yield from (Import(importer, name.removeprefix("text2grad").lstrip("."), "") for name in names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                module = ".".join(["text2grad", *inside[: len(inside) + 1 - node.level], *filter(None, [module])])
            if module.split(".")[0] == "text2grad":
                home = module.removeprefix("text2grad").lstrip(".")
                yield from (Import(importer, home, alias.name) for alias in node.names)


def package_of(found: Import) -> tuple[str, str]:
    """Return the packages (or ground modules) that an import leads from and to."""
    return found.importer.split(".")[0], (found.module or found.name).split(".")[0]


def arrows(packages: Sequence[Package]) -> dict[str, set[str]]:
    """Return the boxes that each box imports, without imports that longer ways imply or the table does not allow."""
    box = {one.name: GROUND[0] if one.name in GROUND else one.name for one in packages}
    allowed = {(one.name, other) for one in packages for other in one.may_import}
    direct: dict[str, set[str]] = {one: set() for one in box.values()}
    for importer, imported in allowed.intersection(map(package_of, imports())):
        if box[importer] != box[imported]:
            direct[box[importer]].add(box[imported])
    reach: dict[str, set[str]] = {}
    for name in direct:  # the table lists a package after those that it imports
        reach[name] = direct[name].union(*(reach.get(other, set()) for other in direct[name]))
    return {
        name: {one for one in others if not any(one in reach.get(other, ()) for other in others)}
        for name, others in direct.items()
    }


def layers(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the layer of each box, 0 at the top: above all boxes that import it, at most `ROW` boxes in a layer."""
    depth: dict[str, int] = {}
    for name in graph:
        depth[name] = 1 + max((depth[other] for other in graph[name] if other in depth), default=-1)
    for name in reversed(list(graph)[1:]):
        depth[name] = min((depth[other] for other in graph if name in graph[other]), default=depth[name] + 1) - 1
    for layer in range(max(depth.values()), 0, -1):
        row = [name for name in graph if depth[name] == layer]
        able = [name for name in row if all(depth[other] < layer - 1 for other in graph[name])]
        for name in able[: max(len(row) - ROW, 0)]:
            depth[name] -= 1
    return depth


def with_bends(graph: Mapping[str, set[str]], depth: Mapping[str, int]) -> tuple[list[list[str]], list[list[Node]]]:
    """Return the nodes of each layer, and each arrow as its nodes from importer to imported, one per layer."""
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name in graph:
        rows[depth[name]].append(name)
    paths = []
    for name, others in graph.items():
        for other in sorted(others, key=list(graph).index):
            bends = [Node(f"|{name} {other}", layer) for layer in range(depth[name] - 1, depth[other], -1)]
            for bend in bends:
                rows[bend.layer].append(bend.name)
            paths.append([Node(name, depth[name]), *bends, Node(other, depth[other])])
    return rows, paths


def best_order(rows: Sequence[Sequence[str]], paths: Sequence[Sequence[Node]]) -> list[tuple[str, ...]]:
    """Return the order of each layer with the fewest crossings; the first one found, of several."""
    steps = [pair for path in paths for pair in pairwise(path)]

    def crossings(order: Sequence[Sequence[str]]) -> tuple[int, int]:
        place = {(name, layer): i for layer, row in enumerate(order) for i, name in enumerate(row)}
        count = sum(
            (place[a] - place[c]) * (place[b] - place[d]) < 0
            for (a, b), (c, d) in combinations(steps, 2)
            if a.layer == c.layer
        )
        return count, sum(abs(2 * place[a] - 2 * place[b] - len(rows[a.layer]) + len(rows[b.layer])) for a, b in steps)

    return list(min(product(*map(permutations, rows)), key=crossings))


def draw(packages: Sequence[Package]) -> str:
    """Return the picture."""
    graph = arrows(packages)
    rows, paths = with_bends(graph, layers(graph))
    order = best_order(rows, paths)
    width = max(_row_width(row) for row in order) + 2 * MARGIN
    centre = _centres(order, width)
    notes = {package.name: re.split(r"[;.:]", package.sentence.replace("`", ""))[0] for package in packages}
    notes[GROUND[0]] = "exceptions, nouns, files, bars, costs"
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * RISE
    parts = [_arrow(path, paths, centre) for path in paths]
    parts += [_box(name, notes[name], centre[node], node[1]) for node in centre if (name := node[0]) in graph]
    told = "; ".join(f"{name} imports {', '.join(sorted(others))}" for name, others in graph.items() if others)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title about">\n<title id="title">The packages of text2grad</title>\n'
        f'<desc id="about">{escape(told)}.</desc>\n<style>{STYLE}</style>\n'
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker>\n'
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _centres(order: Sequence[Sequence[str]], total: int) -> dict[Node, float]:
    """Return the x of each node; a layer is centred, a bend takes little room."""
    found = {}
    for layer, row in enumerate(order):
        left = (total - _row_width(row)) / 2
        for name in row:
            found[Node(name, layer)] = left + _width(name) / 2
            left += _width(name) + GAP
    return found


def _width(name: str) -> int:
    return BEND if name.startswith("|") else BOX + 148 * (name == GROUND[0])


def _row_width(row: Sequence[str]) -> int:
    return sum(map(_width, row)) + GAP * (len(row) - 1)


def _top(layer: int) -> int:
    return MARGIN + layer * (HEIGHT + RISE)


def _arrow(path: Sequence[Node], paths: Sequence[Sequence[Node]], centre: Mapping[Node, float]) -> str:
    """Return one arrow, from the upper edge of the importer to the lower edge of the imported package."""

    def port(node: Node, own: Node, others: list[Node]) -> float:
        ranked = sorted(others, key=lambda other: centre[other])
        spread = BOX * 0.62 / max(len(ranked) - 1, 1)
        return centre[node] + (ranked.index(own) - (len(ranked) - 1) / 2) * min(spread, 26)

    first, last = path[0], path[-1]
    xs = [centre[node] for node in path]
    xs[0] = port(first, path[1], [other[1] for other in paths if other[0] == first])
    xs[-1] = port(last, path[-2], [other[-2] for other in paths if other[-1] == last])
    parts = [f"M{xs[0]:.0f} {_top(first.layer)}"]
    for (before, after), node in zip(pairwise(xs), path[1:], strict=True):
        start, end = _top(node.layer + 1), _top(node.layer) + HEIGHT
        middle = (start + end) / 2
        parts.append(f"C{before:.0f} {middle:.0f} {after:.0f} {middle:.0f} {after:.0f} {end}")
        parts += [f"V{_top(node.layer)}"] if node is not last else []
    return f'<path class="line" marker-end="url(#tip)" d="{"".join(parts)}"/>'


def _box(name: str, note: str, x: float, layer: int) -> str:
    """Return one box: the name of the package, and the first words of its sentence."""
    lines = wrap(note, 21)
    top = _top(layer) + (19 if len(lines) > 1 else 25)
    text = "".join(
        f'<text class="note" x="{x:.0f}" y="{top + 15 + 13 * i}" text-anchor="middle">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    shown = ", ".join(GROUND) if name == GROUND[0] else name
    return (
        f'<rect class="box" x="{x - _width(name) / 2:.0f}" y="{_top(layer)}" width="{_width(name)}" '
        f'height="{HEIGHT}" rx="6"/>'
        f'<text class="name" x="{x:.0f}" y="{top}" text-anchor="middle">{shown}</text>{text}'
    )


if __name__ == "__main__":
    (DOCS / "architecture.svg").write_text(draw(read_table((DOCS / "architecture.md").read_text("utf-8"))), "utf-8")
