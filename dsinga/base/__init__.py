"""What everything stands on: errors, the registry, settings, messages, files, signals."""
