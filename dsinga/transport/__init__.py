"""Sends calls and arrays between workers and servers: directly, through shared memory, or by Dask Actors.

Runs in every process that has workers or servers of a run. It does not import Dask: an Actor is any object with the
method ``call`` of :class:`dsinga.transport.actor.ActorEndpoint`.
"""
