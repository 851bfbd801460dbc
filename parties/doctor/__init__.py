"""``parties doctor``: what this machine has for each resource, what it lacks, what to change, and who is in the way."""
