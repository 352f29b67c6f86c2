"""mpi4py programs on virtual nodes: `MPI` has mpi4py's names, and `mpi_programs` lets the programs block.

An mpi4py script runs after one change, of its import:

    from testbed.mpi import MPI  # instead of: from mpi4py import MPI

``testbed run star-2 ./pingpong.py`` then runs it on every node, as ``mpiexec`` runs it on every rank. A process that
was started in a node has a rank within ``with testbed.attach():``; on a shared NIC, several processes of a node have
one.
"""
