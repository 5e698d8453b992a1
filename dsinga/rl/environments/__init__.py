"""Environments: those registered or of Gymnasium, their spaces, loops over them, and pictures."""
