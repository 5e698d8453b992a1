"""The lowest room: errors, the registry, settings, checks of arguments, files, and signals."""
