"""How the model was fitted to the paper, and how far it agrees.

``paper`` has the published figures, ``measure`` sets ours beside them, and ``python -m simulator.calibration.fit`` fits the
services again (needs scipy). Sections 4 and 5 of the paper only; the results of its section 6 are never fitted.
"""
