"""LLC ways: resctrl where the kernel has it, else pqos; ``actuator`` chooses."""
