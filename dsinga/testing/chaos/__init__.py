"""Faults as a tool: trains a job while processes of its cluster are killed, stopped and retired, and measures that.

``python -m dsinga.testing.chaos JOB --mtbf 30``. ``faults`` has the kinds of faults, causes them at random moments
and starts a cluster for them, ``trials`` trains with faults and without and takes the times of recoveries, ``report``
adds up.
"""
