"""What is read: one module per source of latency or usage. Nothing here writes to the machine."""
