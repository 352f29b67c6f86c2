"""Columns of a matrix go to the rows of another one, by derived datatypes."""

from array import array

from mpi4py import MPI

ROWS, COLUMNS = 40, 30

comm = MPI.COMM_WORLD
column = MPI.DOUBLE.Create_vector(ROWS, 1, COLUMNS).Create_resized(0, MPI.DOUBLE.Get_size()).Commit()
if comm.rank == 0:
    matrix = array("d", range(ROWS * COLUMNS))
    comm.Send([matrix, COLUMNS, column], 1)
elif comm.rank == 1:
    turned = array("d", bytes(8 * ROWS * COLUMNS))
    comm.Recv([turned, MPI.DOUBLE], 0)
    assert all(turned[c * ROWS + r] == r * COLUMNS + c for r in range(ROWS) for c in range(COLUMNS))
    back = array("d", bytes(8 * ROWS * COLUMNS))
    comm.Sendrecv(turned, 1, 5, [back, COLUMNS, column], 1, 5)
    assert list(back) == list(range(ROWS * COLUMNS))
column.Free()
