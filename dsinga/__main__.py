"""Lets ``python -m dsinga`` run the command line."""

from dsinga.commands.cli import main

main()
