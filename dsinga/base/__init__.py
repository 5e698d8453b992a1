"""What all packages use: errors, the registry of components, settings, checks of arguments, files, and signals."""
