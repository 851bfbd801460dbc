"""Real services, load, best-effort jobs and the experiments made of them."""
