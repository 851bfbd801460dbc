"""Runs on the simulated node as people see them: what can be asked for, tables, pictures."""
