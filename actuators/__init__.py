"""The only writers: one module per resource, over the control-group layer and the knobs they share."""
