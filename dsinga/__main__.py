"""``python -m dsinga`` is ``dsinga``."""

from dsinga.cli import main

main()
