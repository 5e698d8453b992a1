"""Layers that call a user's function; the library in which the function is written computes the gradient."""
