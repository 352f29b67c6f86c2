"""Send the columns of a matrix to the rows of another one with derived datatypes."""

from array import array

from mpi4py import MPI

ROWS, COLUMNS = 40, 30

comm = MPI.COMM_WORLD
column = MPI.DOUBLE.Create_vector(ROWS, 1, COLUMNS).Create_resized(0, MPI.DOUBLE.Get_size()).Commit()
if comm.rank == 0:
    matrix = array("d", range(ROWS * COLUMNS))
    comm.Send([matrix, COLUMNS, column], 1)
elif comm.rank == 1:
    transposed = array("d", bytes(8 * ROWS * COLUMNS))
    comm.Recv([transposed, MPI.DOUBLE], 0)
    assert all(transposed[c * ROWS + r] == r * COLUMNS + c for r in range(ROWS) for c in range(COLUMNS))
    back = array("d", bytes(8 * ROWS * COLUMNS))
    comm.Sendrecv(transposed, 1, 5, [back, COLUMNS, column], 1, 5)
    assert list(back) == list(range(ROWS * COLUMNS))
column.Free()
