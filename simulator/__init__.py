"""The simulated node: one more platform, with virtual time, for the same loop, policies, placement and record.

``profile`` is what nodes, services and best-effort jobs are (data in ``configs``). ``machine`` says what a division of the node
means for a request of each service, ``queueing`` how long requests then take, ``traffic`` what clients report of them; ``platform``
gives that to the loop. ``docs/simulator.md`` has the model and what of it was fitted.
"""
