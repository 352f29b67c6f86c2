"""Algorithms of MPI's collective calls, as coroutines over `collective_exchange.Exchange`. `choices` selects the algorithm
of a call."""
