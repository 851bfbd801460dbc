"""The control-group layer: where the hierarchies are, and what can be read and set of one group.

Actuators speak to ``ControlGroup`` (``group.py``) in terms that both versions of control groups share: ``v1.py`` and ``v2.py``
are one class each with the same knobs, and ``layer.py`` chooses between them, for each controller by itself.
"""
