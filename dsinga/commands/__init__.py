"""The commands of ``dsinga``: options in, a room below called, lines out."""
