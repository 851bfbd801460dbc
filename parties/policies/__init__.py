"""What decides: one policy a file. A policy is a plain object without files, sockets or clocks."""
