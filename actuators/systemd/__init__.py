"""Control groups that systemd owns: their values are read from the kernel and written through unit properties."""
