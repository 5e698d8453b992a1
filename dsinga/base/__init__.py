"""The lowest package: errors, the registry of components, settings, checks of arguments, files, and signals."""
