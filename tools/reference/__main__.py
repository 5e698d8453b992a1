"""Writes the pages, or says which are out of date: see ``tools.reference``."""

import argparse
import sys

from tools.reference.pages import FOLDER, pages


def main() -> int:
    """Write the pages, or compare them with what would be written."""
    parser = argparse.ArgumentParser(description="Write docs/reference/ from signatures, settings and docstrings.")
    parser.add_argument("--check", action="store_true", help="only say which pages are out of date")
    check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
