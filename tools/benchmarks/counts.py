"""The shape of a checkout in numbers: ``python -m tools.benchmarks.counts [--names] TREE``.

It reads the files and imports none of them. Circular imports are found over all imports: those of functions, and those
for annotations alone (``TYPE_CHECKING``), too.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

from tools.benchmarks.private_names import name_of, private_reaches

DASK = ("dask", "distributed")
FILE_LINES, SMALL_LINES = 250, 60
# Rooms in which a forward pass is defined, or timed; elsewhere a file that calls it is a runner.
FORWARD_ROOMS = ("dsinga/training/", "dsinga/addons/planner/", "dsinga/layers/", "dsinga/ops/", "dsinga/nn/")
REFERENCE = re.compile(r"\s*(See|Like|As) :\w+:`[^`]+`\.?\s*")

Row = tuple[str, int, list[str]]
"""What is counted, how much there is of it, and where."""


def rows_of(tree: Path) -> Iterator[Row]:
    """Yield the rows of the table."""
    root = tree / "dsinga"
    files = {str(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    modules = {name: ast.parse(text) for name, text in files.items()}
    lines = {name: text.count("\n") for name, text in files.items()}
    yield "files of dsinga/", len(files), []
    yield "lines of dsinga/", sum(lines.values()), []
    yield "lines of code in dsinga/", sum(map(code_lines, (root.parent / name for name in files))), []
    users = {name: sum(imports_dask(node) for node in ast.walk(module)) for name, module in modules.items()}
    users = {name: count for name, count in users.items() if count}
    yield "files that import Dask", len(users), listed(users)
    yield "imports of Dask", sum(users.values()), []
    classes = class_homes(modules)
    shared = {name: homes for name, homes in classes.items() if len(homes) > 1}
    yield "names that several classes share", len(shared), [f"{name}: {', '.join(shared[name])}" for name in shared]
    referring = [place for name, module in modules.items() for place in bare_references(name, module)]
    yield "docstrings that only refer to another", len(referring), referring
    graph = import_graph(modules)
    yield f"files of at most {SMALL_LINES} lines with one importer", *small(lines, graph)
    loops = calling(modules, {"due", "is_due"}, ("dsinga/extensions/",))
    yield "files beside extensions/ that decide when something is due", len(loops), loops
    runners = calling(modules, {"forward", "forward_pass"}, FORWARD_ROOMS)
    yield "files that run forward passes", len(runners), runners
    waits = calling(modules, {"check_workers", "wait_for_loss", "scheduler_info"}, ())
    yield "files that look for lost Dask workers", len(waits), waits
    yield from room_rows(graph, "dsinga/cluster/")
    cycles = circular(graph)
    yield "groups of files that import each other in a circle", len(cycles), [" ".join(cycle) for cycle in cycles]
    yield "files in such circles", sum(map(len, cycles)), []
    doors = closing_lookups(graph, lookup_graph(modules, root / "base" / "components.csv"))
    yield "lookups by a literal name that close a circle of imports", len(doors), doors
    yield f"files of dsinga/ over {FILE_LINES} lines", *longer(lines, FILE_LINES)
    tests = line_counts(tree, "tests", "*.py")
    yield "lines of tests/", sum(tests.values()), []
    yield f"files of tests/ over {FILE_LINES} lines", *longer(tests, FILE_LINES)
    reaches = private_reaches(tree, modules)
    yield "reaches of tests/ into private names", len(reaches), reaches
    pages = line_counts(tree, "docs", "*.md")
    yield "pages of docs/", len(pages), []
    yield "lines of docs/", sum(pages.values()), []


def line_counts(tree: Path, folder: str, pattern: str) -> dict[str, int]:
    """Return the number of lines by file."""
    paths = sorted((tree / folder).rglob(pattern))
    return {str(path.relative_to(tree)): path.read_text(encoding="utf-8").count("\n") for path in paths}


def code_lines(path: Path) -> int:
    """Return the number of lines that have code: no blank ones, comments and docstrings."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    before = tokenize.NEWLINE
    for token in tokens:
        is_text = token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type not in skipped and not is_text:
            lines |= set(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    return len(lines)


def small(lines: dict[str, int], graph: dict[str, set[str]]) -> tuple[int, list[str]]:
    """Return how many small files exactly one other file imports, and which."""
    importers = Counter(target for targets in graph.values() for target in targets)
    names = [name for name, count in lines.items() if count <= SMALL_LINES and importers[name] == 1]
    return len(names), [f"{name}: {lines[name]}" for name in names]


def calling(modules: dict[str, ast.Module], names: set[str], rooms: tuple[str, ...]) -> list[str]:
    """Return the files outside ``rooms`` that call a function or method of one of these names."""
    return [
        file
        for file, module in modules.items()
        if not file.startswith(rooms)
        and any(isinstance(node, ast.Call) and name_of(node.func) in names for node in ast.walk(module))
    ]


def room_rows(graph: dict[str, set[str]], folder: str) -> Iterator[Row]:
    """Yield how many rooms a folder has, the arrows between them, and their floors: the longest way of arrows."""

    def room(name: str) -> str:
        return name.removeprefix(folder).split("/")[0].removesuffix(".py")

    inside = {name: targets for name, targets in graph.items() if name.startswith(folder)}
    rooms: dict[str, set[str]] = {room(name): set() for name in inside}
    for name, targets in inside.items():
        rooms[room(name)] |= {room(target) for target in targets if target in inside} - {room(name)}
    rooms.pop("__init__", None)  # the face of the folder
    arrows = [f"{source} -> {target}" for source in rooms for target in sorted(rooms[source] & rooms.keys())]

    def floors(source: str, above: tuple[str, ...] = ()) -> int:
        below = rooms[source] & rooms.keys() - {source, *above}
        return 1 + max((floors(target, (*above, source)) for target in below), default=0)

    yield f"rooms of {folder}", len(rooms), sorted(rooms)
    yield f"arrows between rooms of {folder}", len(arrows), arrows
    yield f"floors of {folder}", max(map(floors, rooms), default=0), []


def longer(lines: dict[str, int], limit: int) -> tuple[int, list[str]]:
    """Return how many files have more lines than the limit, and which."""
    long = {name: count for name, count in lines.items() if count > limit}
    return len(long), listed(long)


def listed(counts: dict[str, int]) -> list[str]:
    """Return names with their counts, the largest first."""
    return [f"{name}: {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1])]


def imports_dask(node: ast.AST) -> bool:
    """Whether a statement imports Dask or distributed."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in DASK for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in DASK


def class_homes(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Return the files that define a class of a name, at their top level."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, module in modules.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    return dict(sorted(homes.items()))


def bare_references(name: str, module: ast.Module) -> Iterator[str]:
    """Yield the places of docstrings that say no more than where another docstring is."""
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node)
            if text and REFERENCE.fullmatch(text):
                yield f"{name}:{getattr(node, 'lineno', 1)} {text}"


def import_graph(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return the files of the package that each file imports, anywhere in it."""
    homes = {module_name(name): name for name in modules}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                graph[name] |= {homes[alias.name] for alias in node.names if alias.name in homes}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:  # a name of a package may be one of its files
                    home = homes.get(f"{node.module}.{alias.name}") or homes.get(node.module)
                    graph[name] |= {home} if home else set()
    return graph


def lookup_graph(modules: dict[str, ast.Module], table: Path) -> dict[str, set[str]]:
    """Return the files of the components that each file looks up by a literal kind and name."""
    rows = [line.split(",") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    homes = {(row[0], row[1]): row[3] for row in rows}
    files = {module_name(name): name for name in modules}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and name_of(node.func) in ("lookup", "find"):
                home = homes.get(tuple(each.value for each in node.args if isinstance(each, ast.Constant)))
                graph[name] |= {files[home]} if home else set()
    return graph


def closing_lookups(imports: dict[str, set[str]], lookups: dict[str, set[str]]) -> list[str]:
    """Return the lookups, as "FILE -> FILE", of components that import the file which asks, if not directly."""
    both = {name: imports[name] | lookups[name] for name in imports}
    group_of = {name: number for number, group in enumerate(circular(both)) for name in group}
    edges = ((name, target) for name in sorted(lookups) for target in sorted(lookups[name]))
    return [f"{name} -> {target}" for name, target in edges if group_of.get(name, -1) == group_of.get(target, -2)]


def module_name(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def circular(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files each of which imports all others of its group, if not directly (Tarjan 1972)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def connect(name: str) -> None:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in index:
                connect(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in stack:
                lowest[name] = min(lowest[name], index[target])
        if lowest[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1 or name in graph[name]:
                groups.append(sorted(group))

    for name in graph:
        if name not in index:
            connect(name)
    return groups


@click.command()
@click.option("--names", is_flag=True, help="Print which they are, too.")
@click.argument("tree", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(tree: Path, names: bool) -> None:
    """Print how large a checkout is, and how many exceptions from its rules it has."""
    for what, count, places in rows_of(tree):
        click.echo(f"{count:7,}  {what}")
        for place in places if names else ():
            click.echo(f"         - {place}")


if __name__ == "__main__":
    main()
