"""Layers that call a function of the user's own, whose gradient comes from the library in which it is written."""
