"""The control-group layer: where the hierarchies are, and what can be read and set of one group.

Actuators speak to ``ControlGroup`` (``group.py``) in terms that both versions of control groups share; ``v1.py`` is the version
that this layer knows. A second version is a second class with the same knobs, not a second actuator.
"""
