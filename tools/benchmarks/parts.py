"""The weight of each part: ``python -m tools.benchmarks.parts [--since COMMIT] [--write PAGE]``.

Prints a table of files and lines of the core, the cluster and each add-on, with the lines that commits since COMMIT
have added to it and taken away, but for files that moved. ``--write`` puts the table between the marks of a page.
"""

from __future__ import annotations

import configparser
import subprocess
from collections import defaultdict
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
BEGIN = "<!-- parts: written by python -m tools.benchmarks.parts -->\n\n"
END = "\n\n<!-- end of parts -->"
ROWS = ("cutting", "testing", "estimators", "convert", "models", "rl")


def core_rooms() -> set[str]:
    """Return the rooms of the core: those below cut nets in ``.importlinter``."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter", encoding="utf-8")
    order = config["importlinter:contract:rooms"]["layers"].split("\n")
    return {room for line in order[order.index("cutting") + 1 :] for room in line.split(" | ")}


def part_of(path: str, core: set[str]) -> str:
    """Return the row of a file of ``dsinga/``."""
    room, *rest = Path(path).parts[1:]
    if room == "addons":
        return f"addons/{rest[0]}/" if len(rest) > 1 else "the core"
    return "the cluster" if room == "cluster" else f"{room}/" if room in ROWS else "the core"


def weights(since: str) -> dict[str, list[int]]:
    """Return by part: files, lines, lines added and lines taken away."""
    core, result = core_rooms(), defaultdict(lambda: [0, 0, 0, 0])
    for path in sorted((ROOT / "dsinga").rglob("*.py")):
        row = result[part_of(str(path.relative_to(ROOT)), core)]
        row[0] += 1
        row[1] += path.read_text(encoding="utf-8").count("\n")
    command = ["git", "diff", "-M30%", "--numstat", "-z", since, "--", "dsinga/*.py"]
    fields = iter(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"))
    for field in fields:
        if not field:
            break
        added, taken, path = field.split("\t")
        if not path:  # a file that was moved: its old name, and its new one
            next(fields)
            path = next(fields)
        row = result[part_of(path, core)]
        row[2] += int(added)
        row[3] += int(taken)
    return result


def table(since: str) -> str:
    """Return the table as Markdown, the core first and add-ons by their lines."""
    rows = weights(since)
    names = sorted(rows, key=lambda name: ({"the core": 0, "the cluster": 1}.get(name, 2), -rows[name][1]))
    total = [sum(row[i] for row in rows.values()) for i in range(4)]
    lines = ["| part | files | lines | added | taken away | added for each taken away |", "|---" * 6 + "|"]
    for name, (files, count, added, taken) in [*((name, rows[name]) for name in names), ("all", total)]:
        ratio = f"{added / taken:.2f}" if taken else "-"
        code = f"`{name}`" if name.endswith("/") else name
        lines.append(f"| {code} | {files} | {count:,} | {added:,} | {taken:,} | {ratio} |")
    return "\n".join(lines)


@click.command()
@click.option("--since", default="HEAD", help="The commit after which lines were added and taken away.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="The page whose table is written anew.")
def main(since: str, write: Path | None) -> None:
    """Print how many lines each part has, and how they changed."""
    text = table(since)
    if write is None:
        click.echo(text)
        return
    before, _, rest = write.read_text(encoding="utf-8").partition(BEGIN)
    write.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
