/* Allreduce and Alltoall as the workload `imb` measures them, for MPI in C.

   collectives COUNT SECONDS SIZE ...: COUNT calls of a size, of SECONDS at most; a line of JSON for each call and size. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP = 2 };

typedef void call(char *out, char *into, int size);

static void allreduce(char *out, char *into, int size)
{
    MPI_Allreduce(out, into, size / (int)sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(char *out, char *into, int size)
{
    MPI_Alltoall(out, size, MPI_BYTE, into, size, MPI_BYTE, MPI_COMM_WORLD);
}

static double took(call *made, char *out, char *into, int size, int count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    for (int number = 0; number < count; number++)
        made(out, into, size);
    return MPI_Wtime() - begun;
}

static void measure(const char *name, call *made, int size, int most, double seconds)
{
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char *out = calloc(ranks, size), *into = calloc(ranks, size);
    double warm = took(made, out, into, size, WARM_UP) / WARM_UP;
    int fit = warm * most > seconds ? (int)(seconds / warm) : most, count;
    fit = fit < 1 ? 1 : fit;
    MPI_Allreduce(&fit, &count, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    double each = took(made, out, into, size, count) / count, total;
    MPI_Reduce(&each, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"benchmark\": \"%s\", \"size_bytes\": %d, \"count\": %d, \"avg_ns\": %.0f}\n", name, size, count,
               total / ranks * 1e9);
        fflush(stdout);
    }
    free(out), free(into);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    for (int argument = 3; argument < argc; argument++)
        measure("Allreduce", allreduce, atoi(argv[argument]), atoi(argv[1]), atof(argv[2]));
    for (int argument = 3; argument < argc; argument++)
        measure("Alltoall", alltoall, atoi(argv[argument]), atoi(argv[1]), atof(argv[2]));
    MPI_Finalize();
    return 0;
}
