"""Pictures of nets, plans and runs."""
