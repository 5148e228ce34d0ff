"""What the site has beside the pages of docs/: README as its first page, and the docstrings of all public names.

    mkdocs build --strict   # mkdocs.yml names this file; the site is in build/site

Links that leave docs/ become their text, since the site has no page for them.
"""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

import text2grad

DOCS = Path(__file__).parent
LINK = re.compile(r"(?<!!)\[((?:`[^`]*`|[^\[\]`])*)\]\(([^()\s]+)\)")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
NAMES = re.compile(r"^`text2grad\.` \|.*\Z", re.MULTILINE | re.DOTALL)


class Examples(griffe.Extension):
    """Shows what stands under "Example:" in a docstring as code: griffe knows "Examples:" alone."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the heading."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub("Examples:", obj.docstring.value)


def on_files(files: Files, config: Any) -> Files:
    """Add README as the first page, seen from docs/."""
    text = (DOCS.parent / "README.md").read_text("utf-8")
    text = text.replace("](docs/", "](").replace('="docs/', '="').replace("<picture>", '<picture markdown="0">')
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Return the text of a page for the site: titles of files over their blocks, links that lead somewhere."""
    markdown = FENCE.sub(r'```\1 title="\2"', markdown)
    if page.file.src_uri == "reference.md":
        blocks = (f"::: text2grad.{name}" for name in sorted(text2grad.__all__))
        markdown = NAMES.sub(lambda _: "\n\n".join(blocks), markdown)
    return LINK.sub(lambda link: link[0] if leads_somewhere(link[2], files) else link[1], markdown)


def leads_somewhere(target: str, files: Files) -> bool:
    """Return whether a link of a page has a page or file of the site, or lies elsewhere on the web."""
    path = target.partition("#")[0]
    return "://" in target or not path or files.get_file_from_path(path) is not None
