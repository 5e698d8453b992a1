"""The rendered site: it builds without a warning, its links lead somewhere, its search finds, it needs no network."""

import importlib.util
import inspect
import os
import posixpath
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.site_search import NODE, search

pytest.importorskip("mkdocstrings", reason="needs pip install 'dsinga[docs]'")
pytest.importorskip("material", reason="needs pip install 'dsinga[docs]'")

ROOT = Path(__file__).parents[2]
# What people type, and the page that answers it.
SEARCHES = {
    "train from xr.open_zarr on SLURM": "howto/slurm.html",
    "xr.open_zarr": "howto/datasets.html",
    "save and load": "start/first-net.html",
    "own loss": "howto/own-code.html",
    "mixed precision": "howto/gpus.html",
    "GPU": "howto/gpus.html",
    "resume": "howto/stop-and-resume.html",
    "early stopping": "howto/callbacks.html",
    "learning rate": "howto/learning-rate.html",
    "SSHCluster": "howto/run-on-a-cluster.html",
    "Parquet": "howto/tables.html",
    "ONNX": "howto/onnx.html",
    "fine-tuning": "howto/fine-tune.html",
    "TensorBoard": "howto/follow-runs.html",
    "does not learn": "howto/not-learning.html",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]  # the site is built


class Links(HTMLParser):
    """The anchors of a page, the targets and texts of its links, and what a browser loads for it."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []
        self.in_link = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.targets.append(given["href"])
            self.in_link = "download" not in given
        elif tag == "link" and "stylesheet" in given.get("rel", ""):
            self.loaded.append(given["href"])
        elif tag in ("script", "img", "iframe") and "src" in given:
            self.loaded.append(given["src"])

    def handle_endtag(self, tag: str) -> None:
        self.in_link &= tag != "a"

    def handle_data(self, data: str) -> None:
        if self.in_link:
            self.texts.append(data.strip())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Links]:
    """The pages by path."""
    return {path.relative_to(site).as_posix(): Links(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_every_page_of_the_documentation_is_in_the_navigation(pages: dict[str, Links]) -> None:
    linked = {posixpath.normpath(urlsplit(target).path) for target in pages["index.html"].targets}
    pages_of_docs = (ROOT / "docs").rglob("*.md")
    names = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in pages_of_docs}
    assert {name.replace("README", "index") for name in names} - {"index.html"} <= linked
    notebooks = {f"project/{path.relative_to(ROOT)}.html" for path in (ROOT / "notebooks").rglob("*.ipynb")}
    assert notebooks
    assert notebooks | {"api/api.html", "api/extensions.html", "project/index.html"} <= linked


def test_links_lead_somewhere(site: Path, pages: dict[str, Links]) -> None:
    broken = []
    for page, links in pages.items():
        if page == "404.html":  # its links begin at the root of the server
            continue
        for target in [*links.targets, *links.loaded]:
            parts = urlsplit(target)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            path = (
                posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path))) if parts.path else page
            )
            if not (site / path).is_file():
                broken.append(f"{page}: {target}")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                broken.append(f"{page}: {target} (no such anchor)")
    assert sum(len(links.targets) for links in pages.values()) > 1000
    assert not broken, "\n".join(broken[:20])


def test_links_to_pages_have_titles_as_texts(pages: dict[str, Links]) -> None:
    assert "Fields of a job" in pages["index.html"].texts
    listings = [page for page in pages if page.endswith("/index.html")]  # of the files of a folder
    found = {page: [text for text in links.texts if text.endswith(".md")] for page, links in pages.items()}
    assert not {page: texts for page, texts in found.items() if texts and page not in listings}


def test_nothing_is_loaded_over_the_network(site: Path, pages: dict[str, Links]) -> None:
    loaded = [(page, target) for page, links in pages.items() for target in links.loaded if urlsplit(target).netloc]
    assert not loaded
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert "@import url(http" not in styles
    assert "fonts.googleapis" not in "".join((site / page).read_text("utf-8") for page in pages)


def test_the_api_has_the_public_names(pages: dict[str, Links]) -> None:
    import dsinga
    from dsinga import extensions, models, plotting, rl

    functions = {f"dsinga.{name}" for name in dsinga.__all__}
    assert {"dsinga.train", "dsinga.plan"} <= functions <= pages["api/api.html"].anchors
    classes = {f"dsinga.extensions.{name}" for name in extensions.classes()}
    assert "dsinga.extensions.CSV" in classes
    assert classes <= pages["api/extensions.html"].anchors
    functions = {f"{getattr(models, name).__module__}.{name}" for name in models.__all__}
    assert functions <= pages["api/models.html"].anchors
    names = {
        f"dsinga.rl.{name}"
        for name in rl.__all__
        if inspect.isroutine(getattr(rl, name)) or inspect.isclass(getattr(rl, name))
    }
    assert {"dsinga.rl.PPO", "dsinga.rl.train"} <= names <= pages["api/rl.html"].anchors
    assert {f"{plotting.__name__}.{name}" for name in plotting.__all__} <= pages["api/monitor.html"].anchors


def test_the_api_has_what_users_call_of_inherited_methods(pages: dict[str, Links]) -> None:
    names = pages["api/nn.html"].anchors
    methods = ("fit", "evaluate", "predict", "job", "params", "save")
    assert {f"dsinga.nn.{kind}.{name}" for kind in ("Model", "Sequential") for name in methods} <= names
    assert not {"dsinga.nn.Model.make_job", "dsinga.nn.Model.input_names"} & names
    assert "dsinga.estimators.Classifier.to_local" in pages["api/estimators.html"].anchors
    assert "dsinga.data.RecordStore.read" in pages["api/data.html"].anchors


def test_blocks_that_the_tests_write_to_files_are_shown_with_their_names(site: Path) -> None:
    text = (site / "howto" / "job-files.html").read_text("utf-8")
    assert '<span class="filename">points.conf</span>' in text
    assert "```" not in text


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_a_search_finds_the_page_of_the_subject_first(site: Path) -> None:
    found = search(site, list(SEARCHES))
    assert {query: hits[0].partition("#")[0] for query, hits in found.items()} == SEARCHES


CHAPTERS = sorted(path.stem for path in (ROOT / "docs" / "book").glob("*.md") if path.stem != "README")
WITH_FORMULAS = [
    *(f"book/{name}.html" for name in CHAPTERS),
    *(f"project/{path.relative_to(ROOT)}.html" for path in sorted((ROOT / "notebooks" / "book").glob("*.ipynb"))),
]
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


@pytest.mark.parametrize("page", WITH_FORMULAS)
def test_formulas_are_marked_and_none_is_left_out(page: str, site: Path, pages: dict[str, Links]) -> None:
    text = (site / page).read_text("utf-8")
    assert len(FORMULA.findall(text)) > 5
    rest = re.sub(r"<(code|pre|script)\b.*?</\1>", "", FORMULA.sub("", text), flags=re.DOTALL)
    assert "$" not in rest
    loaded = [posixpath.basename(target) for target in pages[page].loaded]
    katex = ["katex.min.css", "katex.min.js", "typeset.js"]
    assert [name for name in loaded if name in katex] == katex


def test_a_browser_typesets_all_formulas(site: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or pytest.skip("needs chromium")
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    for page in WITH_FORMULAS[:: len(CHAPTERS)]:
        address = (site / page).as_uri()
        done = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=90, check=True)
        assert done.stdout.count('class="katex"') == len(FORMULA.findall((site / page).read_text("utf-8"))), page
        assert "katex-error" not in done.stdout


WIDEST = """<script>addEventListener("load", () => {
  const cut = [...document.querySelectorAll("pre > code")].filter(code => code.scrollWidth > code.clientWidth + 1);
  document.body.innerHTML = `blocks of code that are cut: ${cut.length}`;
})</script></body>"""


def test_code_is_not_cut_at_the_right(site: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or pytest.skip("needs chromium")
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    for page in ("howto/slurm", "howto/learning-rate", "design/partitioning"):
        measured = site / f"{page}-measured.html"
        measured.write_text((site / f"{page}.html").read_text("utf-8").replace("</body>", WIDEST), "utf-8")
        command_line = [*command, "--window-size=1280,2000", "--dump-dom", measured.as_uri()]
        done = subprocess.run(command_line, capture_output=True, text=True, timeout=50, check=True)
        measured.unlink()
        assert "blocks of code that are cut: 0" in done.stdout, page


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://user:secret@example.org/group/dsinga.git\n", "https://example.org/group/dsinga"),
        ("git@example.org:group/dsinga.git", "https://example.org/group/dsinga"),
        ("ssh://git@example.org/group/dsinga", "https://example.org/group/dsinga"),
        ("/srv/git/dsinga.git", None),
        ("", None),
    ],
)
def test_the_source_is_the_origin_of_the_clone(remote: str, address: str | None) -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / ".ci" / "site.py")
    assert spec
    assert spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert hooks.web_address(remote) == address
