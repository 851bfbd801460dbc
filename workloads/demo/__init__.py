"""The demo: two services and a best-effort job on one managed CPU, under four managers in turn, with the same load."""
