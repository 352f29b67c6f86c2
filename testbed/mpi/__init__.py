"""mpi4py's programs on virtual nodes: `MPI` has its names, and `mpi_programs` lets them block.

An mpi4py script runs here after one change, of its import:

    from testbed.mpi import MPI  # it was: from mpi4py import MPI

``testbed run star-2 ./pingpong.py`` then runs it on every node, as ``mpiexec`` runs it on every rank. A process that
was started in a node has a rank within ``with testbed.attach():``; several processes of a node, where its NIC is
shared.
"""
