"""Errors of predicted fields by group: variables, leads, seasons, regions, maps; beside forecasts that need no net."""
