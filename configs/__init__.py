"""Example configurations that ship with the package."""
