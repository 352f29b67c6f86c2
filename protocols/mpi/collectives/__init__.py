"""Algorithms of MPI's collective calls, as coroutines over `collective_exchange.Exchange`. `choices` says which one a
call uses."""
