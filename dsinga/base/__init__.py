"""The tools that all packages use: errors, the registry of components, settings, checks, files, and signals."""
