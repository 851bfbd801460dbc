"""The paper's figures on the simulated node: experiments, the runner that measures them, and the report.

``experiment`` says what an experiment is, ``figures`` has one file for each, ``registry`` knows their names. ``runner`` measures
points in processes and keeps what is finished (``store``), ``report`` makes one page of everything. ``docs/experiments.md`` has the
grids.
"""
