"""CPU frequency of each holder's cores (section 4.1), by cpufreq.

``policy`` finds what the machine has, through cpupower's library (``cpupower``) or the kernel's files; ``levels`` chooses the
mechanism and the levels of a pool; ``knobs`` are the values that are set; ``speed`` reads what the cores really run at;
``actuator`` joins them.
"""
