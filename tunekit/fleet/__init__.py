"""Many workers on one run: processes of this host, or Ray's actors on many.

One process leads. It alone searches, so that a seed and a recording give the same trials on any
number of workers, and a run's trials move between all its keys. Each worker leases the keys that it
is given from the shared store, tries what the leader proposes for them, stores each trial itself
and then tells it. So a worker that is killed loses its leases and what it was at, a leader that is
killed loses nothing that was tried, and the store is written by as many as there are workers.
"""
