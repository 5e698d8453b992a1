"""What mkdocs does besides rendering docs/: navigation, pages of the API and of settings, formulas, other files.

On GitHub, pages link to files of the repository by relative paths. On the site, each such file is a page below
``project/``: Markdown as it is, notebooks as text and code, other files as code. Links are rewritten, so that they lead
somewhere in both places. A link whose text is the name of a page's file has the page's title on the site.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support import settings_pages  # noqa: E402  needs the path above

MODELS = [path for path in ROOT.glob("dsinga/models/*.py") if path.stem != "__init__"]
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)([^)\s]*\))")
FILE_NAME = re.compile(r"\[((?:[\w.-]+/)*[\w-]+\.(?:md|ipynb))\](?=\(([^)\s#]+))")  # the text of a link
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(```\w+) file=(\S+)$", re.MULTILINE)  # what the tests write a block to
ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc):<code>~?([^<]*)</code>")
# The pages of the API: their titles, by the name of the page, and the modules whose public names they show.
API = {
    "nn": ("Nets in Python", ["dsinga.nn"]),
    "api": ("Training, testing, planning", ["dsinga"]),
    "estimators": ("Estimators", ["dsinga.estimators"]),
    "rl": ("Reinforcement learning", ["dsinga.rl"]),
    "job": ("Jobs", ["dsinga.job"]),
    "data": ("Data", ["dsinga.data"]),
    "models": ("Models", ["dsinga.models", *sorted(f"dsinga.models.{path.stem}" for path in MODELS)]),
    "extensions": ("Extensions", ["dsinga.extensions"]),
    "monitor": ("History and pictures", ["dsinga.monitor", "dsinga.addons.pictures.plotting"]),
    "checkpoint": ("Checkpoints", ["dsinga.checkpoint"]),
    "layers": ("Layers", ["dsinga.layers", "dsinga.layers.interface.layer", "dsinga.layers.interface.context"]),
    "training": ("Updaters and algorithms", ["dsinga.training"]),
    "retrieval": ("Retrieval", ["dsinga.addons.retrieval"]),
    "testing": ("Contracts for tests", ["dsinga.testing"]),
    "errors": ("Errors and registration", ["dsinga.base.errors", "dsinga.base.registry"]),
}
# The pages that also show what classes inherit, and the public names on them that only dsinga itself calls.
INHERITED = {
    "nn": [
        "as_labels", "has_channels_last", "input_names", "input_shapes", "label_examples", "label_inputs", "make_job",
        "output_layers", "require_loss", "takes_one_hot", "text_encoders",
    ],
    "estimators": ["check_shape", "for_blocks", "nbytes"],
    "data": [],
}  # fmt: skip
PROJECT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# How much pages count in the search, others 1: reference and diaries repeat words often; two answer many words.
SEARCH_BOOSTS = {"api/": 0.05, "settings-": 0.05, "dev/": 0.01, "project/": 0.01, "extending.md": 2, "slurm.md": 2}
OUTPUT_LINES = 40  # of a cell of a notebook, that the site shows
# What a page with formulas loads, below docs/.
TYPESETTING = ("assets/katex/katex.min.css", "assets/katex/katex.min.js", "assets/typeset.js")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation, the link to the source, and anchors as GitHub makes them."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    config.repo_url = config.repo_url or origin()
    notebooks = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/**/*.ipynb"))
    dev = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/dev/*.md"))
    config.nav = [
        {"Overview": "README.md"},
        *sections((ROOT / "docs" / "README.md").read_text(encoding="utf-8")),
        {"Notebooks": [site_path(path) for path in notebooks]},
        {"Settings of components": list(settings_pages.PAGES)},
        {"API": [f"api/{name}.md" for name in api_pages()]},
        {"The project": [site_path(path) for path in (*PROJECT, *dev)]},
    ]
    return config


def sections(index: str) -> list[dict[str, list[str]]]:
    """Return the navigation that docs/README.md gives: for each table, the pages in its first cells."""
    found = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        cells = re.findall(r"^\| (\[.*?) \|", text, re.MULTILINE)
        if cells:
            found.append({title: re.findall(r"\((\S+?\.md)\)", " ".join(cells))})
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages of the API, of settings, and of files outside docs/, as far as links lead from page to page."""
    made = {f"api/{name}.md": text for name, text in api_pages().items()} | settings_pages.pages()
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    for file in [file for file in files if file.src_uri.startswith("dev/")]:
        file.inclusion = InclusionLevel.INCLUDED
    todo = [*PROJECT, *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/**/*.ipynb"))]
    for file in files.documentation_pages():
        if file.src_uri not in made:
            todo += targets(repo_path(file.src_uri))
    done: set[str] = set()
    while todo:
        path = todo.pop()
        if path in done or path.startswith("docs/") and (ROOT / path).is_file():
            continue
        done.add(path)
        files.append(File.generated(config, site_path(path), content=page_text(path)))
        if path.endswith(".ipynb"):
            files.append(File.generated(config, f"project/{path}", abs_src_path=str(ROOT / path)))
        todo += targets(path)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of a page, and say how much it counts in the search."""
    source = page.file.src_uri
    for beginning, boost in SEARCH_BOOSTS.items():
        if source.startswith(beginning):
            page.meta["search"] = {"boost": boost}
    if source.startswith("api/"):
        return markdown
    folder = posixpath.dirname(source)
    if source == "settings.md":
        markdown += "".join(f"\n- [{page.title}]({name})" for name, page in settings_pages.PAGES.items())

    def rewrite(target: str) -> str:
        path = resolve(repo_path(source), target)
        return posixpath.relpath(site_path(path), folder or ".") if path else target

    return FILE.sub(r'\1 title="\2"', replace_links(name_pages(markdown, repo_path(source)), rewrite))


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Show the roles of docstrings, as in :func:`train`, as code; load what typesets the formulas of a page."""
    if page.file.src_uri.startswith("api/"):
        return ROLE.sub(r"<code>\1</code>", html)
    if 'class="arithmatex"' not in html:
        return html
    style, *scripts = (posixpath.relpath(path, posixpath.dirname(page.file.dest_uri) or ".") for path in TYPESETTING)
    elements = [f'<script src="{script}"></script>' for script in scripts]
    return "\n".join([f'<link rel="stylesheet" href="{style}">', html, *elements])


def origin() -> str | None:
    """Return the web address of the repository that this checkout is a clone of, None where it has none."""
    command = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    try:
        return web_address(subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout)
    except FileNotFoundError:  # git is not installed
        return None


def web_address(remote: str) -> str | None:
    """Return the web address, without user and password, of a git remote by https or ssh, None for others."""
    match = re.match(r"(?:(?:https?|ssh)://(?:[^@/]*@)?|git@)([\w.-]+)[:/](?!\d+/)(.+?)(?:\.git)?/?$", remote.strip())
    return f"https://{match[1]}/{match[2]}" if match else None


def api_pages() -> dict[str, str]:
    """Return the pages of the API by name, for the modules that exist."""
    pages = {}
    for name, (title, modules) in API.items():
        paths = {module: ROOT / module.replace(".", "/") for module in modules}
        found = [module for module, path in paths.items() if path.is_dir() or path.with_suffix(".py").exists()]
        if found:
            options = inherited_options(name)
            pages[name] = f"# {title}\n\n" + "".join(f"`{module}`\n\n::: {module}\n{options}\n" for module in found)
    return pages


def inherited_options(name: str) -> str:
    """Return the options of mkdocstrings for a page of the API that shows what classes inherit, "" for others."""
    if name not in INHERITED:
        return ""
    filters = ["!^_", *(f"!^{internal}$" for internal in INHERITED[name])]
    return f"    options:\n      inherited_members: true\n      filters: {json.dumps(filters)}\n"


def site_path(path: str) -> str:
    """Return the path below the site's docs_dir for a path of the repository: pages of docs/ stay where they are."""
    if path.startswith("docs/"):
        return (
            path.removeprefix("docs/")
            if (ROOT / path).is_file()
            else f"{path.removeprefix('docs/').rstrip('/')}/index.md"
        )
    if (ROOT / path).is_dir():
        return f"project/{path}/index.md"
    return f"project/{path}" if path.endswith(".md") else f"project/{path}.md"


def repo_path(source: str) -> str:
    """Return the path in the repository of the page at ``source``, the opposite of :func:`site_path`."""
    if not source.startswith("project/"):
        return (
            f"docs/{source}".removesuffix("/index.md") if not (ROOT / "docs" / source).is_file() else f"docs/{source}"
        )
    path = source.removeprefix("project/")
    return path if (ROOT / path).exists() else path.removesuffix("/index.md").removesuffix(".md")


def resolve(page: str, target: str) -> str | None:
    """Return the path in the repository to which a link of a page leads, None where nothing is there."""
    folder = page if (ROOT / page).is_dir() else posixpath.dirname(page)
    path = posixpath.normpath(posixpath.join(folder, target))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").is_file():
        path = f"{path}/README.md"
    return path if (ROOT / path).exists() and not path.startswith("..") else None


def targets(path: str) -> list[str]:
    """Return the paths in the repository to which the links of a file lead."""
    found: list[str] = []
    if path.endswith((".md", ".ipynb")) or (ROOT / path).is_dir():

        def note(target: str) -> str:
            found.extend(filter(None, [resolve(path, target)]))
            return target

        replace_links(page_text(path), note)
    return found


def page_text(path: str) -> str:
    """Return a file of the repository, or the list of a folder's files, as Markdown."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(item.name for item in file.iterdir() if item.suffix in {".md", ".conf", ".py"})
        return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
    if path.endswith((".png", ".svg")):
        return ""
    text = file.read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        return "\n\n".join(notebook_blocks(json.loads(text), file.name))
    if path.endswith(".md"):
        return text
    language = "python" if file.suffix == ".py" else "text"
    return f"# {path}\n\n````{language}\n{text}````\n"


def notebook_blocks(notebook: dict[str, Any], name: str) -> Iterator[str]:
    """Yield the cells of a notebook and their outputs as Markdown; a link to the notebook comes after its title."""
    for number, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for output in cell.get("outputs", ()):
            yield output_block({"text/plain": output.get("text", ""), **output.get("data", {})})
        if not number:
            yield f'<p><a href="{name}" download>{name}</a>: download it, and open it in JupyterLab.</p>'


def output_block(data: dict[str, Any]) -> str:
    """Return the Markdown of an output of a notebook, by MIME type: its picture, else HTML or lines of text."""
    drawn = re.search(r"<svg.*?</svg>", "".join(data.get("image/svg+xml", data.get("text/html", ""))), re.DOTALL)
    if "image/png" in data:
        source = "data:image/png;base64," + "".join("".join(data["image/png"]).split())
    elif drawn and 'xmlns="http://www.w3.org/2000/svg"' in drawn[0]:
        source = "data:image/svg+xml;base64," + base64.b64encode(drawn[0].encode()).decode()
    elif "".join(data["text/plain"]).startswith("<IPython.core.display.HTML"):
        return "<div>" + re.sub(r"\n\s*\n", "\n", "".join(data["text/html"])) + "</div>"
    else:
        lines = re.sub(r"\x1b\[[\d;]*m", "", "".join(data["text/plain"])).rstrip().splitlines()
        shown = [*lines[:OUTPUT_LINES], "..."] if len(lines) > OUTPUT_LINES else lines
        return "\n".join(["````text", *shown, "````"])
    return f'<p><img alt="output" src="{source}"></p>'


def replace_links(markdown: str, rewrite: Callable[[str], str]) -> str:
    """Return Markdown with the targets of its relative links replaced, those in blocks of code left as they are."""
    parts = FENCE.split(markdown)
    for number in range(0, len(parts), 2):
        parts[number] = LINK.sub(lambda match: match[1] + rewrite(match[2]) + match[3], parts[number])
    return "".join(parts)


def name_pages(markdown: str, source: str) -> str:
    """Return the Markdown of the page at ``source`` with titles in place of file names, as the texts of its links."""

    def title(match: re.Match[str]) -> str:
        path = resolve(source, match[2])
        heading = re.search(r"^# (.+)$", page_text(path), re.MULTILINE) if path else None
        return f"[{heading[1]}]" if heading else match[0]

    return FILE_NAME.sub(title, markdown)


def slugify(text: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)
