"""docs/faults.md names, for each fault, a test that produces what the page says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (?!fault|---)(.+?) \| (.+?) \| `(\S+?)` \|$", (ROOT / "docs" / "faults.md").read_text("utf-8"), re.M
)


def test_each_row_names_a_test_with_what_is_said():
    missing = []
    for fault, said, name in ROWS:
        file, _, function = name.partition("::")
        path = ROOT / "tests" / file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        quoted = re.findall(r'"(.+?)"', said)
        if f"def {function}(" not in text or any(part not in text for part in quoted):
            missing.append(f"{fault}: {name} {quoted}")
    assert not missing
