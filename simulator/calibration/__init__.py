"""How the model was fitted to the paper, and how far it agrees.

``paper`` has the published figures, ``measure`` sets ours beside them, and ``python -m simulator.calibration.fit`` fits the
services again (needs scipy).

The fit's figures are those of the paper's sections 4 and 5; ``docs/calibration.md`` says how a look
at section 6 changed bounds of MongoDB's.
"""
