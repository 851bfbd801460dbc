"""How the model was fitted to the paper, and how far it agrees.

``paper`` has the published figures, ``measure`` sets ours beside them, and ``python -m simulator.calibration.fit`` fits the
services again (needs scipy).

The fit's figures are those of the paper's sections 4 and 5; section 6 is never fitted (``docs/calibration.md``).
"""
