"""``python -m dsinga`` is ``dsinga``."""

from dsinga.commands.cli import main

main()
